//! The content of an image: space, inodes, logs, fragmentation.

use super::pieces::Fragmentation;
use heddle_console::size::Size;
use heddle_console::table::table;
use heddle_nvmfs::fsck::Survey;
use heddle_vfs::FileKind;
use serde::Serialize;

const BLOCK_BYTES: u64 = heddle_pmem::BLOCK_BYTES as u64;

#[derive(Serialize)]
pub struct Content {
    space: Space,
    inodes: Inodes,
    logs: Logs,
    fragmentation: Fragmentation,
    /// Issues that fsck would find, without notes.
    issues: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    files: Vec<File>,
}

#[derive(Serialize)]
struct Space {
    total_bytes: u64,
    data_bytes: u64,
    log_bytes: u64,
    inode_bytes: u64,
    fixed_bytes: u64,
    free_bytes: u64,
}

#[derive(Serialize)]
struct Inodes {
    slots: u64,
    named: u64,
    nameless: u64,
    regular: u64,
    directories: u64,
    symlinks: u64,
    others: u64,
}

#[derive(Serialize)]
struct Logs {
    inodes: u64,
    chains: u64,
    chains_of_one_inode_max: u32,
    pages: u64,
    records: u64,
    records_living: u64,
    records_dead: u64,
}

#[derive(Serialize)]
struct File {
    inode: u64,
    kind: String,
    names: u32,
    size_bytes: u64,
    data_bytes: u64,
    extents: u64,
    chains: u32,
    log_pages: u64,
    records: u64,
    records_living: u64,
}

impl Content {
    pub fn of(survey: &Survey, files: bool) -> Content {
        let bytes = |blocks: u64| blocks * BLOCK_BYTES;
        let kinds = |wanted: FileKind| survey.inodes.iter().filter(|i| i.kind == wanted).count() as u64;
        let (regular, directories, symlinks) =
            (kinds(FileKind::Regular), kinds(FileKind::Directory), kinds(FileKind::Symlink));
        let named = survey.inodes.len() as u64;
        let sum = |of: fn(&heddle_nvmfs::fsck::Figures) -> u64| {
            survey.inodes.iter().map(|i| of(&i.figures)).sum::<u64>()
        };
        let max = |of: fn(&heddle_nvmfs::fsck::Figures) -> u64| {
            survey.inodes.iter().map(|i| of(&i.figures)).max().unwrap_or(0)
        };
        let (records, living) = (sum(|f| f.records), sum(|f| f.living));
        let shown = survey.inodes.iter().filter(|_| files).map(|i| File {
            inode: i.ino.0,
            kind: format!("{:?}", i.kind).to_lowercase(),
            names: i.links,
            size_bytes: i.figures.size_bytes,
            data_bytes: bytes(i.figures.blocks),
            extents: i.figures.extents,
            chains: i.figures.chains,
            log_pages: i.figures.pages,
            records: i.figures.records,
            records_living: i.figures.living,
        });
        Content {
            space: Space {
                total_bytes: bytes(survey.blocks),
                data_bytes: bytes(survey.blocks_data),
                log_bytes: bytes(survey.blocks_logs),
                inode_bytes: bytes(survey.blocks_inodes),
                fixed_bytes: bytes(survey.blocks_fixed),
                free_bytes: bytes(survey.blocks_free),
            },
            inodes: Inodes {
                slots: survey.slots,
                named,
                nameless: survey.orphans,
                regular,
                directories,
                symlinks,
                others: named - regular - directories - symlinks,
            },
            logs: Logs {
                inodes: sum(|f| u64::from(f.pages > 0)),
                chains: sum(|f| u64::from(f.chains)),
                chains_of_one_inode_max: max(|f| u64::from(f.chains)) as u32,
                pages: sum(|f| f.pages),
                records,
                records_living: living,
                records_dead: records.saturating_sub(living),
            },
            fragmentation: Fragmentation::of(
                survey.inodes.iter().map(|i| i.figures.extents),
                survey.blocks_data,
            ),
            issues: survey.issues,
            files: shown.collect(),
        }
    }

    /// As text.
    pub fn text(&self) -> String {
        let (s, i, l) = (&self.space, &self.inodes, &self.logs);
        let mut rows = vec![
            (
                "space",
                format!(
                    "{} data, {} logs, {} inodes, {} fixed, {} free",
                    Size(s.data_bytes),
                    Size(s.log_bytes),
                    Size(s.inode_bytes),
                    Size(s.fixed_bytes),
                    Size(s.free_bytes)
                ),
            ),
            (
                "inodes",
                format!(
                    "{} ({} files, {} directories, {} links, {} others), {} without a name; {} slots",
                    i.named, i.regular, i.directories, i.symlinks, i.others, i.nameless, i.slots
                ),
            ),
            (
                "logs",
                format!(
                    "{} pages in {} chains of {} inodes (at most {} of one), {} records: {} living, {} dead",
                    l.pages,
                    l.chains,
                    l.inodes,
                    l.chains_of_one_inode_max,
                    l.records,
                    l.records_living,
                    l.records_dead
                ),
            ),
            ("extents", self.fragmentation.text()),
        ];
        if self.issues > 0 {
            rows.push(("damage", format!("{} issues: see heddle fsck -n", self.issues)));
        }
        let mut text =
            rows.iter().map(|(name, value)| format!("{name:<9}{value}")).collect::<Vec<_>>().join("\n");
        if !self.files.is_empty() {
            let header = [
                "inode",
                "kind",
                "names",
                "size",
                "data",
                "extents",
                "chains",
                "log pages",
                "records",
                "living",
            ];
            let rows = self.files.iter().map(|f| {
                [
                    f.inode.to_string(),
                    f.kind.clone(),
                    f.names.to_string(),
                    Size(f.size_bytes).to_string(),
                    Size(f.data_bytes).to_string(),
                    f.extents.to_string(),
                    f.chains.to_string(),
                    f.log_pages.to_string(),
                    f.records.to_string(),
                    f.records_living.to_string(),
                ]
            });
            text += &format!("\n\n{}", table(header, rows));
        }
        text
    }
}
