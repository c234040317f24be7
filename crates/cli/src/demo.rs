//! x
use anyhow::Result;
#[derive(clap::Args)]
#[command(after_help = "Examples:")]
pub struct Args {}
#[derive(clap::Args)]
pub struct WriterArgs {}
pub const WRITER: &str = "demo-writer";
pub fn run(_: &Args) -> Result<()> {
    Ok(())
}
pub fn write_until_killed(_: &WriterArgs) -> Result<()> {
    Ok(())
}
