//! The superblock of an F2FS image and, on request, its content.

use super::pieces::Fragmentation;
use anyhow::Result;
use heddle_console::output::{self, Sink};
use heddle_console::size::Size;
use heddle_console::table::table;
use heddle_f2fs::format::BLOCK_BYTES;
use heddle_f2fs::{F2fs, Info, Survey};
use serde::Serialize;
use std::path::Path;

#[derive(Serialize)]
struct F2fsInfo {
    output_version: u32,
    image: String,
    variant: &'static str,
    size_bytes: u64,
    uuid: String,
    label: String,
    features: String,
    clean: bool,
    needs_fsck: bool,
    /// A repair was stopped half-way: `heddle fsck` tells the way out.
    half_repaired: bool,
    checkpoint_version: u64,
    blocks_user: u64,
    blocks_valid: u64,
    segments_main: u32,
    segments_free: u32,
    segments_per_section: u32,
    nodes: u32,
    inodes: u32,
    orphans: u64,
    fsynced_inodes: u64,
    /// A node log may have newer changes.
    node_log: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<Content>,
}

#[derive(Serialize)]
struct Content {
    fragmentation: Fragmentation,
    /// Parts that could not be read.
    problems: Vec<String>,
    files: Vec<File>,
}

#[derive(Serialize)]
struct File {
    inode: u32,
    kind: String,
    names: u32,
    size_bytes: u64,
    data_bytes: u64,
    extents: u64,
}

/// Prints the image; `files` reads and lists all files.
pub fn run(image: &Path, json: bool, files: bool) -> Result<()> {
    let fs = F2fs::open(image)?;
    let info = fs.info();
    let f2fs = F2fsInfo {
        output_version: 1,
        image: image.display().to_string(),
        variant: "f2fs",
        size_bytes: info.geometry.blocks * BLOCK_BYTES as u64,
        uuid: info.uuid.iter().map(|byte| format!("{byte:02x}")).collect(),
        label: info.label.clone(),
        features: info.feature_names.clone(),
        clean: info.clean,
        needs_fsck: info.needs_fsck,
        half_repaired: info.is_half_repaired,
        checkpoint_version: info.checkpoint_version,
        blocks_user: info.blocks_user,
        blocks_valid: info.blocks_valid,
        segments_main: info.geometry.main_segments,
        segments_free: info.segments_free,
        segments_per_section: info.geometry.segments_per_section,
        nodes: info.nodes,
        inodes: info.inodes,
        orphans: info.orphans,
        fsynced_inodes: info.fsynced_inodes,
        node_log: info.is_logged,
        content: files.then(|| Content::of(fs.survey())),
    };
    if json { output::json(&Sink::Stdout, &f2fs) } else { output::data(&text(&f2fs, &info)) }
}

impl Content {
    fn of(survey: Survey) -> Content {
        let files = survey.inodes.iter().map(|i| File {
            inode: i.nid.0,
            kind: format!("{:?}", i.kind).to_lowercase(),
            names: i.links,
            size_bytes: i.size_bytes,
            data_bytes: i.blocks * BLOCK_BYTES as u64,
            extents: i.extents,
        });
        let blocks = survey.inodes.iter().map(|i| i.blocks).sum();
        Content {
            fragmentation: Fragmentation::of(survey.inodes.iter().map(|i| i.extents), blocks),
            files: files.collect(),
            problems: survey.problems,
        }
    }

    fn text(&self) -> String {
        let problems = self.problems.iter().map(|what| format!("\n{:<12}{what}", "damaged"));
        let rows = self.files.iter().map(|f| {
            let [size, data] = [f.size_bytes, f.data_bytes].map(|bytes| Size(bytes).to_string());
            [f.inode.to_string(), f.kind.clone(), f.names.to_string(), size, data, f.extents.to_string()]
        });
        let table = table(["inode", "kind", "names", "size", "data", "extents"], rows);
        let extents = self.fragmentation.text();
        format!("\n{:<12}{extents}{}\n\n{table}", "extents", problems.collect::<String>())
    }
}

fn text(f2fs: &F2fsInfo, info: &Info) -> String {
    let state = match (f2fs.clean, f2fs.fsynced_inodes) {
        (true, 0) => "clean".to_owned(),
        (_, 0) => "not unmounted".to_owned(),
        (_, inodes) => format!("not unmounted; {inodes} files were fsynced after the checkpoint"),
    };
    let state = match f2fs.node_log {
        true => format!("{state}; its node log in NVM may have newer changes: mount it with the log"),
        false => state,
    };
    let state = if f2fs.needs_fsck { format!("{state}; Linux asks for fsck.f2fs") } else { state };
    let state = match f2fs.half_repaired {
        true => format!(
            "half repaired: a repair of it was stopped; the way out: heddle fsck {}",
            heddle_undo::shell_word(std::path::Path::new(&f2fs.image))
        ),
        false => state,
    };
    let or_none = |text: &str| if text.is_empty() { "none".to_owned() } else { text.to_owned() };
    let rows = [
        ("image", f2fs.image.clone()),
        ("variant", "f2fs".to_owned()),
        ("size", format!("{} ({} bytes)", Size(f2fs.size_bytes), f2fs.size_bytes)),
        ("label", or_none(&f2fs.label.escape_debug().to_string())),
        ("uuid", f2fs.uuid.clone()),
        ("features", or_none(&f2fs.features)),
        ("state", state),
        ("checkpoint", format!("version {}", f2fs.checkpoint_version)),
        ("space", format!("{} of {} blocks in use", f2fs.blocks_valid, f2fs.blocks_user)),
        (
            "segments",
            format!(
                "{} of {} free, {} a section",
                f2fs.segments_free, f2fs.segments_main, f2fs.segments_per_section
            ),
        ),
        (
            "nodes",
            format!("{}, of them inodes: {}, without a name: {}", f2fs.nodes, f2fs.inodes, f2fs.orphans),
        ),
        ("areas", areas(info)),
    ];
    let content = f2fs.content.as_ref().map_or(String::new(), Content::text);
    rows.map(|(name, value)| format!("{name:<12}{value}")).join("\n") + &content
}

fn areas(info: &Info) -> String {
    let places = &info.geometry;
    let starts = [
        ("checkpoint", places.checkpoint),
        ("SIT", places.sit),
        ("NAT", places.nat),
        ("SSA", places.ssa),
        ("main", places.main),
    ];
    starts.map(|(name, start)| format!("{name} from block {}", start.0)).join(", ")
}
