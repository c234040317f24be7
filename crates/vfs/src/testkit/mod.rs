//! (checks)
