//! The promises of a region, on real memory.
use crate::{Backend, Pos, Region};

#[test]
fn every_length_at_every_offset_stores_exactly_its_bytes() {
    let region = Region::anonymous(1 << 20).unwrap();
    let source: Vec<u8> = (0..256).map(|byte| byte as u8 ^ 0x5a).collect();
    for offset in 0..64 {
        for len in 0..=200 {
            region.nt_zero(Pos(0), 512);
            region.nt_write(Pos(64 + offset), &source[..len]);
            region.fence();
            let mut seen = vec![0; 512];
            region.read(Pos(0), &mut seen);
            let mut expected = vec![0; 512];
            expected[64 + offset as usize..][..len].copy_from_slice(&source[..len]);
            assert_eq!(seen, expected, "{len} bytes at offset {offset}");
        }
    }
    assert_eq!(region.backend(), Backend::Memory);
}
