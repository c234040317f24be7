//! The `heddle` command line.

fn main() {}
