//! Images to begin with, made when they are wanted, and what is done to one: forged fields and damaged bytes.
//!
//! An input is 16 bytes that choose an image, then 16 bytes a change (`edit`). The same input is the same change to the same
//! structure every time; identity and times of the image differ from run to run.

mod edit;
mod records;
mod sites;
pub mod walk;

pub use edit::{EDIT_BYTES, Edited, edit};
pub use sites::Sites;

use heddle_crash::corpus;
use heddle_crash::judge::options;
use heddle_crash::op::{Op, Workload};
use heddle_crash::play::Player;
use heddle_nvmfs::format::layout::REGION_BYTES_MIN;
use heddle_nvmfs::ids::BlockNo;
use heddle_nvmfs::{Variant, format_region, mount};
use heddle_pmem::{BLOCK_BYTES, Region};

/// Workloads of the quick set; of the wide one: all.
const QUICK: [&str; 4] = ["data", "names", "attributes", "shifts"];
/// Larger images are left out: they take long and have the same structures.
const IMAGE_BYTES_MAX: u64 = 8 << 20;
/// Operations of a workload that are made.
const STEPS_MAX: usize = 2000;

/// An image: its blocks that are not zero.
struct Base {
    what: String,
    bytes: u64,
    blocks: Vec<(BlockNo, Box<[u8]>)>,
}

/// Images and a region for one of them.
pub struct Images {
    recipes: Vec<(Workload, Variant, bool)>,
    bases: Vec<Option<Base>>,
    region: Region,
    small: Region,
}

/// A chosen image with its structures, not changed yet.
pub struct Chosen<'a> {
    /// It lies here.
    pub region: &'a Region,
    /// What it holds.
    pub sites: Sites,
    /// For people.
    pub what: &'a str,
}

impl Images {
    /// The quick set or the wide one.
    pub fn new(wide: bool) -> Images {
        let known = |workload: &Workload| wide || QUICK.contains(&workload.name.as_str());
        let fits = |workload: &Workload| workload.image_bytes <= IMAGE_BYTES_MAX;
        let workloads: Vec<Workload> =
            corpus::workloads().into_iter().filter(|w| known(w) && fits(w)).collect();
        let variants = if wide { &Variant::ALL[..] } else { &[Variant::Nova, Variant::Heddle] };
        let recipes: Vec<_> = workloads
            .iter()
            .flat_map(|w| variants.iter().flat_map(|v| [true, false].map(|clean| (w.clone(), *v, clean))))
            .collect();
        let region = |bytes| Region::anonymous(bytes).expect("memory for an image");
        Images {
            bases: recipes.iter().map(|_| None).collect(),
            recipes,
            region: region(IMAGE_BYTES_MAX),
            small: region(REGION_BYTES_MIN),
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.recipes.len()
    }

    /// Puts an image into memory.
    ///
    /// # Errors
    /// An image that cannot be made.
    pub fn choose(&mut self, number: usize) -> Result<Chosen<'_>, String> {
        let at = number % self.recipes.len();
        if self.bases[at].is_none() {
            let (workload, variant, clean) = &self.recipes[at];
            self.bases[at] = Some(make(workload, *variant, *clean)?);
        }
        let Some(base) = &self.bases[at] else { return Err("no image".into()) };
        let region = if base.bytes == REGION_BYTES_MIN { &self.small } else { &self.region };
        put(region, base);
        let sites = Sites::of(region).ok_or_else(|| format!("{}: not an image", base.what))?;
        Ok(Chosen { region, sites, what: &base.what })
    }
}

/// Makes the region hold an image, and nothing else.
fn put(region: &Region, base: &Base) {
    let mut next = 0;
    for (block, bytes) in &base.blocks {
        region.nt_zero(BlockNo(next).pos(), (block.0 - next) * BLOCK_BYTES as u64);
        region.nt_write(block.pos(), bytes);
        next = block.0 + 1;
    }
    region.nt_zero(BlockNo(next).pos(), region.len_bytes() - next * BLOCK_BYTES as u64);
    // PERSIST: nothing depends on it; stores past the cache come before the loads that follow.
    region.fence();
}

/// Makes an image: an operation that fails is left out.
fn make(workload: &Workload, variant: Variant, clean: bool) -> Result<Base, String> {
    let what =
        format!("{} as {}, {}", workload.name, variant.name(), if clean { "unmounted" } else { "cut off" });
    let bytes = if workload.image_bytes <= REGION_BYTES_MIN { REGION_BYTES_MIN } else { IMAGE_BYTES_MAX };
    let fail = |e: &dyn std::fmt::Display| format!("{what}: {e}");
    let region = Region::anonymous(bytes).map_err(|e| fail(&e))?;
    let again = || region.map_again().map_err(|e| fail(&e));
    format_region(&region, variant).map_err(|e| fail(&e))?;
    let steps: Vec<&Op> =
        workload.setup.iter().chain(&workload.watched).map(|s| &s.op).take(STEPS_MAX).collect();
    for (number, ops) in steps.split(|op| **op == Op::Remount).enumerate() {
        let volume = mount(again()?, &options()).map_err(|e| fail(&e))?;
        let fs = volume.fs();
        let mut player = Player::new(&fs);
        for (n, op) in ops.iter().enumerate() {
            // Some of them are meant to fail.
            let _ = player.play(number * STEPS_MAX + n, op);
        }
        if clean {
            player.close_all();
            drop(player);
            drop(fs);
            volume.unmount();
        } else {
            drop(player);
            drop(fs);
            volume.abandon();
        }
    }
    let mut blocks = Vec::new();
    for block in (0..bytes / BLOCK_BYTES as u64).map(BlockNo) {
        let mut content = vec![0; BLOCK_BYTES];
        region.read(block.pos(), &mut content);
        if content.iter().any(|byte| *byte != 0) {
            blocks.push((block, content.into_boxed_slice()));
        }
    }
    Ok(Base { what, bytes, blocks })
}
