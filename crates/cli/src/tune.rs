//! `heddle tune`: changes the identity of an unmounted image.

use anyhow::Result;
use heddle_console::failure::usage;
use heddle_console::image;
use heddle_console::output;
use heddle_nvmfs::{new_uuid, set_uuid, size_in_use};
use heddle_pmem::OpenOptions;
use std::path::PathBuf;

/// Change the identity of an unmounted NVM image, so that a copy can be mounted beside the original
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, group(clap::ArgGroup::new("what").required(true)))]
pub struct Args {
    /// The new identity: random, or 32 hexadecimal digits, not all 0, with or without dashes
    #[arg(long, value_name = "random|UUID", group = "what")]
    uuid: Option<String>,
    /// File or device
    image: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  cp /dev/shm/my.img /dev/shm/copy.img && heddle tune --uuid random /dev/shm/copy.img
  heddle tune --uuid 0f3f4d2e-8c1b-4f5a-9e57-2f1f0b6f7a11 /dev/shm/copy.img

tune2fs -U and xfs_admin -U do the same for their images. heddle info shows the identity.";

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let Some(text) = &args.uuid else { return Ok(()) };
    let uuid = match text.as_str() {
        "random" => new_uuid(),
        digits => parse(digits).ok_or_else(|| {
            usage(format!("--uuid {digits}: write random, or 32 hexadecimal digits that are not all 0"))
        })?,
    };
    image::refuse_flash(&args.image, "Its identity stays: inode checksums are made with it")?;
    let options = OpenOptions { prefault: false, size_in_use: Some(&size_in_use), ..OpenOptions::default() };
    let region = image::open(&args.image, &options)?;
    set_uuid(&region, uuid)?;
    output::data(&format!("{}: uuid {}", args.image.display(), image::hex(uuid)))
}

fn parse(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    let is_hex = digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let uuid = u128::from_str_radix(&digits, 16).ok().filter(|uuid| is_hex && *uuid != 0)?;
    Some(uuid.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_32_digits_with_or_without_dashes() {
        let uuid = parse("00000000-0000-0000-0000-0000000000ff").unwrap();
        assert_eq!((uuid[15], parse("000000000000000000000000000000FF")), (255, Some(uuid)));
        for wrong in ["", "0", "g0000000000000000000000000000001", "00000000000000000000000000000000", "+1"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
