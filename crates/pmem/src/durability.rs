//! What a store to a region survives.
//!
//! State       [`Durability`], one for a region and all processes that map it. [`Reach`], what the processor must do for it.
//! Invariants  I1  all processes that store to a region promise the same: one that promises less beside one that promises more
//!                 loses data. The process that opens the region chooses; the others are told.
//! Why so      A process that dies leaves its stores in program order: the kernel completes the executed instructions and nothing after
//!             them. So memory that a power cut empties anyway needs no flush and no wait. Only the compiler must keep the order.

use std::fmt;
use std::str::FromStr;

/// The durability of a store once its thread has fenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Durability {
    /// The death of any process, at any instruction. Not a power cut, nor a crash of the kernel.
    Process,
    /// A power cut as well.
    Power,
}

impl Durability {
    /// Both, the weaker first.
    pub const ALL: [Durability; 2] = [Durability::Process, Durability::Power];

    /// Its name in options, messages and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Durability::Process => "process",
            Durability::Power => "power",
        }
    }

    /// Its number between processes of one machine.
    pub const fn raw(self) -> u32 {
        match self {
            Durability::Process => 1,
            Durability::Power => 2,
        }
    }

    /// The durability of this number; `None` if there is none.
    pub fn from_raw(raw: u32) -> Option<Durability> {
        Durability::ALL.into_iter().find(|known| known.raw() == raw)
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Durability {
    type Err = String;

    fn from_str(text: &str) -> Result<Durability, String> {
        let known = Durability::ALL.into_iter().find(|known| known.name() == text);
        known.ok_or_else(|| {
            "there are process (survives the death of processes) and power (survives power cuts)".to_owned()
        })
    }
}

/// The point that earlier stores must reach before a fence is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Memory, in program order: the death of a process undoes nothing, and the kernel writes a file's pages.
    Memory,
    /// The cache, which is inside the power-fail domain (eADR, CXL memory with global flush).
    Cache,
    /// The memory controller, past the cache (ADR).
    Controller,
}
