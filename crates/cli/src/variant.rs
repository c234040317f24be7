//! `--variant` and `--lock-mode` as clap reads them.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use heddle_nvmfs::{LockMode, Variant};

/// Reads the name of a variant.
pub fn parser() -> impl TypedValueParser<Value = Variant> {
    // Only names of variants pass the first parser.
    PossibleValuesParser::new(Variant::ALL.map(Variant::name))
        .map(|name| Variant::from_name(&name).unwrap_or(Variant::Heddle))
}

/// Reads `paper` or `default`.
pub fn lock_mode(text: &str) -> Result<LockMode, String> {
    match text {
        "paper" => Ok(LockMode::Paper),
        "default" => Ok(LockMode::Default),
        _ => Err(format!(
            "'{text}' is no lock mode: it is paper (spin, readers first) or default (sleep, writers age)"
        )),
    }
}
