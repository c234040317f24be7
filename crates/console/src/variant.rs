//! Parsers for `--variant` and `--lock-mode`.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use heddle_nvmfs::{LockMode, Variant};

/// A system of either engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum System {
    /// On persistent memory.
    Nvm(Variant),
    /// On F2FS images.
    F2fs(heddle_f2fs::Variant),
}

impl System {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            System::Nvm(variant) => variant.name(),
            System::F2fs(variant) => variant.name(),
        }
    }

    /// The system of this name.
    pub fn from_name(name: &str) -> Option<System> {
        let f2fs = || heddle_f2fs::Variant::from_name(name).map(System::F2fs);
        Variant::from_name(name).map(System::Nvm).or_else(f2fs)
    }

    /// All systems.
    pub fn all() -> impl Iterator<Item = System> {
        Variant::ALL.map(System::Nvm).into_iter().chain(heddle_f2fs::Variant::ALL.map(System::F2fs))
    }
}

/// A parser for the name of a system of either engine.
pub fn system() -> impl TypedValueParser<Value = System> {
    // The first parser admits only names of systems.
    PossibleValuesParser::new(System::all().map(System::name))
        .map(|name| System::from_name(&name).unwrap_or(System::Nvm(Variant::Heddle)))
}

/// A parser for the name of a variant of the NVM engine.
pub fn parser() -> impl TypedValueParser<Value = Variant> {
    // The first parser admits only names of variants.
    PossibleValuesParser::new(Variant::ALL.map(Variant::name))
        .map(|name| Variant::from_name(&name).unwrap_or(Variant::Heddle))
}

/// Parses `paper` or `fair`.
pub fn lock_mode(text: &str) -> Result<LockMode, String> {
    match text {
        "paper" => Ok(LockMode::Paper),
        "fair" => Ok(LockMode::Fair),
        _ => Err(format!(
            "'{text}' is no lock mode: it is paper (spin, readers first) or fair (sleep, writers age)"
        )),
    }
}
