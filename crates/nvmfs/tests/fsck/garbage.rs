//! Whatever stands in an image, fsck says something and ends.

use super::craft::Craft;
use super::sample::{Sample, image_bytes, region_of};
use crate::common::Disk;
use heddle_nvmfs::Variant;
use heddle_nvmfs::format::layout::Layout;
use heddle_nvmfs::format::page::{PageHeader, next_pos};
use heddle_nvmfs::format::pointer::{self, PointerLocation};
use heddle_nvmfs::fsck::dump::{What, dump};
use heddle_nvmfs::fsck::{examine, survey};
use heddle_nvmfs::ids::BlockNo;
use heddle_vfs::Ino;
use proptest::prelude::*;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

fn whole(variant: usize) -> &'static [u8] {
    static IMAGES: [OnceLock<Vec<u8>>; 5] = [const { OnceLock::new() }; 5];
    IMAGES[variant].get_or_init(|| image_bytes(&Sample::new(Variant::ALL[variant]).region))
}

/// Processor time of this thread, which alone works: on a busy machine it is no longer than on another.
fn processor_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Runs all that reads an image.
fn read_all(image: &[u8]) {
    let region = region_of(image);
    let began = processor_time();
    if let Ok(verdict) = examine("garbage", &region) {
        let _ = (verdict.found(), verdict.left());
    }
    let _ = survey("garbage", &region);
    for what in [What::Superblock, What::Tree, What::Inode(Ino(5)), What::Log(Ino(2)), What::Page(BlockNo(9))]
    {
        let _ = dump("garbage", &region, &what);
    }
    let took = processor_time() - began;
    assert!(took < Duration::from_secs(60), "it took {took:?}");
}

/// The image is looked through once for all lost chunks: a look for each of these would take minutes.
#[test]
fn an_inode_directory_of_noise_takes_fsck_seconds() {
    let disk = Disk::new(Variant::Heddle, 64 << 20);
    let layout = Layout::new((64 << 20) / 4096);
    let mut seed = 7_u64;
    for n in 0..layout.chunks_max {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        disk.region().store_u64(layout.chunk_pointer(n), seed | 1);
    }
    let began = Instant::now();
    let verdict = examine("noise", disk.region()).unwrap();
    assert!(verdict.issues.len() as u64 >= layout.chunks_max, "{}", verdict.issues.len());
    assert!(began.elapsed() < Duration::from_secs(20), "it took {:?}", began.elapsed());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn noise_anywhere_brings_no_panic_and_no_hang(
        variant in 0..5usize,
        places in prop::collection::vec((0..1024usize, 0..4096usize, 1..600usize, any::<u64>()), 1..40),
    ) {
        let mut image = whole(variant).to_vec();
        for (block, at, len, mut seed) in places {
            // Half of the noise where metadata is dense.
            let block = if seed & 1 == 0 { block % 24 + 1 } else { block };
            let end = (block * 4096 + at + len).min(image.len());
            for byte in &mut image[block * 4096 + at..end] {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = (seed >> 56) as u8;
            }
        }
        read_all(&image);
    }

    #[test]
    fn files_of_noise_are_no_images(words in prop::collection::vec(any::<u64>(), 1..64), blocks in 1..40usize) {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).cycle().take(blocks * 4096).collect();
        read_all(&bytes);
    }
}

#[test]
fn every_length_of_an_image_is_answered() {
    for variant in 0..5 {
        let image = whole(variant);
        for blocks in (1..1024).step_by(37) {
            read_all(&image[..blocks * 4096]);
        }
    }
}

/// Every block is a log page of one file, in one long chain whose lines are all damaged.
#[test]
fn a_chain_through_the_whole_image_ends_in_time() {
    let sample = Sample::new(Variant::Heddle);
    let craft = Craft::new(&sample);
    let (ino, first) = (sample.ino("/victim"), sample.log_page("victim"));
    let id = craft.id(ino);
    let taken: Vec<u64> =
        sample.survey().owners.iter().flat_map(|o| o.block.0..o.block.0 + o.count).collect();
    let free = (craft.layout().data.0..craft.layout().last().0).filter(|b| !taken.contains(b));
    let mut before = first;
    for block in free.map(BlockNo) {
        let header = PageHeader { owner: id, epoch: 1, lane: 1, serial: block.0, chain: 0, era: 0 };
        sample.region.nt_line(block.pos(), &header.encode(craft.seed));
        for word in 8..512 {
            craft.store(block.pos().plus(word * 8), !word);
        }
        craft.store(next_pos(before), pointer::encode(craft.seed, id, PointerLocation::Next(before), block));
        before = block;
    }
    craft.store(next_pos(before), pointer::encode(craft.seed, id, PointerLocation::Next(before), first));
    let began = processor_time();
    let verdict = examine("long", &sample.region).unwrap();
    assert!(verdict.found() > 10_000, "{}", verdict.found());
    let took = processor_time() - began;
    assert!(took < Duration::from_secs(60), "it took {took:?}");
}
