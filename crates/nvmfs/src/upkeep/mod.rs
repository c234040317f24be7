//! Work beside the calls: cleaning of logs, recovery at a mount, and the lanes of threads that have ended or
//! died.

pub mod asker;
pub mod clean;
pub mod garbage;
pub mod leases;
pub mod recovery;
pub mod relog;
pub mod settle;
