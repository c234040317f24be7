//! Structures that are whole and make no sense together are found, and repaired without loss for others.

use super::craft::Craft;
use super::sample::{Sample, repaired};
use crate::common::{each_variant, options};
use heddle_nvmfs::format::page::next_pos;
use heddle_nvmfs::format::pointer::{self, PointerLocation};
use heddle_nvmfs::format::record::{Blocks, Record};
use heddle_nvmfs::fsck::{Code, examine};
use heddle_nvmfs::ids::BlockNo;
use heddle_nvmfs::{Variant, mount};
use heddle_vfs::testkit::Tree;
use heddle_vfs::{FileKind, Ino};

/// Lets `craft` make nonsense, which must be found as `code` and repaired; gives the tree that is left.
fn nonsense(variant: Variant, code: Code, craft: impl Fn(&Craft<'_>, &Sample)) -> (Sample, Tree) {
    let sample = Sample::new(variant);
    craft(&Craft::new(&sample), &sample);
    let verdict = examine("nonsense", &sample.region).unwrap();
    let found = verdict.issues.iter().any(|(issue, _)| issue.code == code);
    assert!(found, "{variant:?}: no {code} in {:#?}", verdict.issues);
    let region = repaired(&sample.region, &verdict);
    let volume = mount(region, &options()).unwrap_or_else(|e| panic!("{variant:?}: {e}"));
    let tree = Tree::of(&volume.fs()).unwrap();
    volume.unmount();
    (sample, tree)
}

/// All but these paths are as they were.
#[track_caller]
fn rest_is_whole(sample: &Sample, after: &Tree, but: &[&str]) {
    let strip = |tree: &Tree| {
        let mut tree = tree.clone();
        tree.nodes.retain(|path, _| !but.iter().any(|b| path.starts_with(b.as_bytes())));
        if let Some(root) = tree.nodes.get_mut(&b"/"[..]) {
            root.nlink = 0;
        }
        // Where records are lost only the owner keeps permissions.
        tree.nodes.values_mut().for_each(|node| node.perm &= 0o700);
        tree
    };
    assert_eq!(strip(after).difference(&strip(&sample.tree)), None);
}

#[test]
fn a_chain_in_a_circle_is_read_once() {
    each_variant(|variant| {
        let (sample, tree) = nonsense(variant, Code::CIRCLE, |craft, sample| {
            let first = sample.log_page("victim");
            let id = craft.id(sample.ino("/victim"));
            craft
                .store(next_pos(first), pointer::encode(craft.seed, id, PointerLocation::Next(first), first));
        });
        rest_is_whole(&sample, &tree, &["/victim"]);
    });
}

#[test]
fn a_block_of_heads_that_is_a_log_page_is_not_believed() {
    each_variant(|variant| {
        let (sample, tree) = nonsense(variant, Code::HEAD_BLOCK, |craft, sample| {
            let (ino, page) = (sample.ino("/victim"), sample.log_page("victim"));
            let heads = pointer::encode(craft.seed, craft.id(ino), PointerLocation::HeadBlock, page);
            craft.store(craft.slot(ino).plus(64 + 6 * 8), heads);
        });
        rest_is_whole(&sample, &tree, &[]);
    });
}

#[test]
fn a_head_that_leads_out_of_the_image_is_cut() {
    each_variant(|variant| {
        let (sample, tree) = nonsense(variant, Code::LOG_OUTSIDE, |craft, sample| {
            let ino = sample.ino("/victim");
            let head =
                pointer::encode(craft.seed, craft.id(ino), PointerLocation::Head(0), BlockNo((1 << 40) - 1));
            craft.store(craft.slot(ino).plus(64), head);
        });
        rest_is_whole(&sample, &tree, &["/victim"]);
    });
}

#[test]
fn a_log_that_leads_to_another_files_page_leaves_that_file_whole() {
    each_variant(|variant| {
        let (sample, tree) = nonsense(variant, Code::HEADER_FOREIGN, |craft, sample| {
            let (ino, page) = (sample.ino("/victim"), sample.log_page("pieces"));
            craft.store(
                craft.slot(ino).plus(64),
                pointer::encode(craft.seed, craft.id(ino), PointerLocation::Head(0), page),
            );
        });
        rest_is_whole(&sample, &tree, &["/victim"]);
    });
}

#[test]
fn a_block_of_two_files_becomes_two_blocks_of_one_content() {
    each_variant(|variant| {
        let (sample, tree) = nonsense(variant, Code::CLAIMED_TWICE, |craft, sample| {
            let symlink =
                sample.survey().owners.into_iter().find(|o| o.data && o.ino == Some(sample.ino("/symlink")));
            let taken = symlink.unwrap().block;
            // The link's text in place of a page of the file.
            craft.change(sample.log_page("dir/below/crowd"), |record| take_block(record, taken));
        });
        rest_is_whole(&sample, &tree, &["/dir/below/crowd"]);
        let crowd = &tree.nodes[&b"/dir/below/crowd"[..]];
        assert!(crowd.pieces.values().any(|piece| piece.starts_with(b"dir/below")), "it has no copy");
    });
}

/// Makes a write of one page one of another block.
fn take_block(record: &mut Record, block: BlockNo) -> bool {
    if let Record::Write { blocks, pages: 1, .. } = record {
        *blocks = Blocks::At(block);
        return true;
    }
    false
}

#[test]
fn pages_outside_the_data_area_become_a_hole() {
    each_variant(|variant| {
        let (sample, tree) = nonsense(variant, Code::EXTENT_OUTSIDE, |craft, sample| {
            let page = sample.log_page("victim");
            craft.change(page, |record| {
                if let Record::Write { blocks, .. } = record {
                    *blocks = Blocks::At(BlockNo(1 << 39));
                    return true;
                }
                false
            });
        });
        rest_is_whole(&sample, &tree, &["/victim"]);
    });
}

#[test]
fn a_size_that_no_file_can_have_is_cut() {
    each_variant(|variant| {
        let (sample, tree) = nonsense(variant, Code::SIZE, |craft, sample| {
            craft.change(sample.log_page("moved"), |record| {
                if let Record::Attributes(state) = record {
                    state.size = (1 << 48) + 1;
                    return true;
                }
                false
            });
        });
        rest_is_whole(&sample, &tree, &["/moved", "/link"]);
    });
}

/// Changes the living entry of a name in the root.
pub fn rename_entry(craft: &Craft<'_>, sample: &Sample, wanted: &str, change: impl Fn(&mut Record)) {
    let what = format!("the log of inode {}", Ino::ROOT.0);
    let root_pages: Vec<BlockNo> =
        sample.survey().owners.iter().filter(|o| o.what == what).map(|o| o.block).collect();
    for page in root_pages.iter().rev() {
        let has = std::cell::Cell::new(false);
        let attempt = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            craft.change(*page, |record| {
                let hit = matches!(record, Record::Name { name, removed: false, .. } if name.bytes() == wanted.as_bytes());
                if hit {
                    has.set(true);
                    change(record);
                }
                hit
            });
        }));
        if attempt.is_ok() && has.get() {
            return;
        }
    }
    panic!("no entry {wanted}");
}

#[test]
fn a_name_of_the_wrong_kind_is_put_right() {
    each_variant(|variant| {
        let (sample, tree) = nonsense(variant, Code::KIND, |craft, sample| {
            rename_entry(craft, sample, "victim", |record| {
                if let Record::Name { kind, .. } = record {
                    *kind = FileKind::Fifo;
                }
            });
        });
        rest_is_whole(&sample, &tree, &[]);
    });
}

#[test]
fn a_directory_with_two_names_keeps_one() {
    each_variant(|variant| {
        let (sample, tree) = nonsense(variant, Code::DIRECTORY_TWICE, |craft, sample| {
            let below = craft.id(sample.ino("/dir/below"));
            rename_entry(craft, sample, "symlink", |record| {
                if let Record::Name { kind, child, .. } = record {
                    (*kind, *child) = (FileKind::Directory, below);
                }
            });
        });
        // Met first from the root: under the name that was the link's.
        rest_is_whole(&sample, &tree, &["/symlink", "/dir", "/lost+found"]);
        assert!(tree.nodes.contains_key(&b"/symlink/crowd"[..]));
        assert!(!tree.nodes.contains_key(&b"/dir/below"[..]));
    });
}

#[test]
fn a_directory_that_is_its_own_ancestor_is_cut_loose_and_kept() {
    each_variant(|variant| {
        let (sample, tree) = nonsense(variant, Code::DIRECTORY_TWICE, |craft, sample| {
            let root = craft.id(Ino::ROOT);
            rename_entry(craft, sample, "symlink", |record| {
                if let Record::Name { kind, child, .. } = record {
                    (*kind, *child) = (FileKind::Directory, root);
                }
            });
        });
        rest_is_whole(&sample, &tree, &["/symlink", "/lost+found"]);
    });
}

#[test]
fn an_orphaned_directory_comes_back_with_its_contents() {
    each_variant(|variant| {
        let (sample, tree) = nonsense(variant, Code::CUT_OFF, |craft, sample| {
            rename_entry(craft, sample, "dir", |record| {
                if let Record::Name { removed, .. } = record {
                    *removed = true;
                }
            });
        });
        rest_is_whole(&sample, &tree, &["/dir", "/lost+found"]);
        let found = format!("/lost+found/#{}/below/crowd", sample.ino("/dir").0);
        let (is, was) = (&tree.nodes[found.as_bytes()], &sample.tree.nodes[&b"/dir/below/crowd"[..]]);
        assert!(is.pieces == was.pieces, "the content is not the same");
    });
}

#[test]
fn a_name_of_an_inode_that_cannot_be_goes() {
    each_variant(|variant| {
        let (sample, tree) = nonsense(variant, Code::INODE_NUMBER, |craft, sample| {
            rename_entry(craft, sample, "symlink", |record| {
                if let Record::Name { child, .. } = record {
                    child.ino = Ino((1 << 40) - 1);
                }
            });
        });
        rest_is_whole(&sample, &tree, &["/symlink", "/lost+found"]);
    });
}

#[test]
fn a_lost_inode_chunk_is_found_by_its_slots() {
    each_variant(|variant| {
        let (sample, tree) = nonsense(variant, Code::CHUNK_POINTER, |craft, _| {
            craft.store(craft.layout().chunk_pointer(0), 0x1234_5678_9abc_def1);
        });
        rest_is_whole(&sample, &tree, &[]);
    });
}

#[test]
fn a_garbage_slot_is_rebuilt_from_its_name_with_its_content() {
    each_variant(|variant| {
        let (sample, tree) = nonsense(variant, Code::SLOT_LOST, |craft, sample| {
            let at = craft.slot(sample.ino("/pieces"));
            (0..8).for_each(|i| craft.store(at.plus(i * 8), 0xdead_beef_0000_0000 | (i + 1)));
        });
        rest_is_whole(&sample, &tree, &["/pieces"]);
        let (is, was) = (&tree.nodes[&b"/pieces"[..]], &sample.tree.nodes[&b"/pieces"[..]]);
        assert!(is.pieces == was.pieces && is.size_bytes == was.size_bytes);
    });
}
