//! Extended attributes, including access lists, from the inode's last slots and its attribute node.

use crate::change::{Change, Need};
use crate::format::{
    INLINE_XATTR_SLOTS, NODE_BODY_BYTES, XATTR_MAGIC, XattrEntry, XattrHeader, node_flag, xattr_prefix,
};
use crate::ids::Nid;
use crate::image::Media;
use crate::inode::Inode;
use heddle_vfs::acl::{Acl, Entry, Tag};
use heddle_vfs::xattr::Xattrs;
use heddle_vfs::{Error, Result, XattrName};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

/// Alignment of entries.
const ALIGN_BYTES: usize = 4;
/// First word of an access list here; in the attribute that users see it differs.
const ACL_VERSION: u32 = 1;

impl Media {
    /// The attributes of an inode, without those that only the kernel uses.
    pub(crate) fn xattrs(&self, inode: &Inode) -> Result<Xattrs> {
        let bytes = self.xattr_bytes(inode)?;
        let found = parse(&bytes);
        found
            .map(|(xattrs, _)| xattrs)
            .map_err(|what| Error::Corrupt(format!("attributes of inode {}: {what}", inode.nid.0)))
    }

    fn xattr_bytes(&self, inode: &Inode) -> Result<Vec<u8>> {
        let mut bytes = inode.inline_xattr_bytes().to_vec();
        let nid = Nid(inode.block().xattr_nid.get());
        if nid != Nid::NONE {
            let node = self.nodes.get(&self.device, &self.geometry, nid, inode.nid)?;
            bytes.extend(&node.body[..NODE_BODY_BYTES]);
        }
        Ok(bytes)
    }

    /// What it takes to set all attributes of an inode.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if they do not fit into the inode and one block.
    pub(crate) fn need_of_xattrs(&self, inode: &Inode, xattrs: &Xattrs) -> Result<Need> {
        let bytes = self.encoded(inode, xattrs)?;
        let needs_node = need_of_bytes(bytes.len(), inode.inline_xattr_bytes().len())?;
        Ok(if needs_node && inode.block().xattr_nid.get() == 0 { Need::NODE } else { Need::NONE })
    }

    fn encoded(&self, inode: &Inode, xattrs: &Xattrs) -> Result<Vec<u8>> {
        let (_, others) = parse(&self.xattr_bytes(inode)?)
            .map_err(|what| Error::Corrupt(format!("attributes of inode {}: {what}", inode.nid.0)))?;
        Ok(encode(xattrs, &others))
    }
}

/// What it takes to make an inode with these attributes.
///
/// # Errors
/// As [`Media::need_of_xattrs`].
pub(crate) fn need_of_new(xattrs: &Xattrs) -> Result<Need> {
    let inline = INLINE_XATTR_SLOTS * size_of::<U32>();
    let needs_node = need_of_bytes(encode(xattrs, &[]).len(), inline)?;
    Ok(if needs_node { Need::NODE } else { Need::NONE })
}

/// Returns true if so many bytes need a node beside the inline space.
fn need_of_bytes(bytes: usize, inline: usize) -> Result<bool> {
    let in_node = bytes.saturating_sub(inline);
    // The word of zeros that ends the list.
    if in_node + ALIGN_BYTES > NODE_BODY_BYTES { Err(Error::NoSpace) } else { Ok(in_node > 0) }
}

impl Change<'_> {
    /// Sets all attributes of an inode; those that only the kernel uses stay.
    pub(crate) fn set_xattrs(&self, inode: &Inode, xattrs: &Xattrs) -> Result<()> {
        let bytes = self.encoded(inode, xattrs)?;
        let inline = inode.inline_xattr_bytes().len();
        let nid = Nid(inode.block().xattr_nid.get());
        let needs_node = need_of_bytes(bytes.len(), inline)?;
        self.space()?.since.nodes_went(inode.nid);
        let node = match (nid, needs_node) {
            (Nid::NONE, true) => self.new_node(inode, node_flag::XATTR_PLACE)?,
            (nid, false) if nid != Nid::NONE => {
                self.free_node(nid, false)?;
                self.count_blocks(inode.nid, -1)?;
                Nid::NONE
            }
            (nid, _) => nid,
        };
        if node != Nid::NONE {
            let tail = &bytes[inline.min(bytes.len())..];
            self.nodes.change(&self.device, &self.geometry, node, |block| {
                block.body.fill(0);
                block.body[..tail.len()].copy_from_slice(tail);
            })?;
        }
        self.change_inode(inode.nid, |block| {
            block.xattr_nid.set(node.0);
            let area = inode.inline_xattr_bytes_mut(block);
            area.fill(0);
            let head = bytes.len().min(inline);
            area[..head].copy_from_slice(&bytes[..head]);
        })
    }
}

/// An attribute that users do not see.
type Other = (u8, Vec<u8>, Vec<u8>);

/// The buffer: header, attributes. Empty if there are none.
fn encode(xattrs: &Xattrs, others: &[Other]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let seen = xattrs.iter().filter_map(|(name, value)| media_form(name, value));
    for (prefix, name, value) in others.iter().cloned().chain(seen) {
        if bytes.is_empty() {
            let header = XattrHeader {
                magic: U32::new(XATTR_MAGIC),
                references: U32::new(1),
                reserved: [U32::new(0); 4],
            };
            bytes.extend(header.as_bytes());
        }
        let entry =
            XattrEntry { prefix, name_bytes: name.len() as u8, value_bytes: U16::new(value.len() as u16) };
        bytes.extend(entry.as_bytes());
        bytes.extend(name);
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(ALIGN_BYTES), 0);
    }
    bytes
}

/// Prefix, rest of the name, and value in the form of the media.
fn media_form(name: &[u8], value: &[u8]) -> Option<Other> {
    let lists = [
        (XattrName::ACL_ACCESS, xattr_prefix::ACL_ACCESS),
        (XattrName::ACL_DEFAULT, xattr_prefix::ACL_DEFAULT),
    ];
    if let Some((_, prefix)) = lists.iter().find(|(list, _)| list.bytes() == name) {
        return Some((*prefix, Vec::new(), media_acl(&Acl::from_xattr(value).ok()??)));
    }
    let prefixes: [(&[u8], u8); 3] = [
        (b"user.", xattr_prefix::USER),
        (b"trusted.", xattr_prefix::TRUSTED),
        (b"security.", xattr_prefix::SECURITY),
    ];
    let named =
        |(begin, prefix): &(&[u8], u8)| Some((*prefix, name.strip_prefix(*begin)?.to_vec(), value.to_vec()));
    prefixes.iter().find_map(named)
}

fn media_acl(acl: &Acl) -> Vec<u8> {
    let mut bytes = ACL_VERSION.to_le_bytes().to_vec();
    for entry in acl.entries() {
        let word = entry.word();
        bytes.extend((word as u32).to_le_bytes());
        if matches!(entry.tag, Tag::User | Tag::Group) {
            bytes.extend(entry.id.to_le_bytes());
        }
    }
    bytes
}

/// The attributes that users see, and the others.
fn parse(bytes: &[u8]) -> std::result::Result<(Xattrs, Vec<Other>), String> {
    let (mut found, mut others) = (Xattrs::default(), Vec::new());
    let Ok((header, mut rest)) = XattrHeader::read_from_prefix(bytes) else { return Ok((found, others)) };
    if header.magic.get() != XATTR_MAGIC {
        return Ok((found, others));
    }
    while let Ok((entry, behind)) = XattrEntry::read_from_prefix(rest) {
        if entry.prefix == 0 {
            break;
        }
        let (name_bytes, value_bytes) = (usize::from(entry.name_bytes), usize::from(entry.value_bytes.get()));
        let whole = (size_of::<XattrEntry>() + name_bytes + value_bytes).next_multiple_of(ALIGN_BYTES);
        let (Some(content), Some(next)) = (behind.get(..name_bytes + value_bytes), rest.get(whole..)) else {
            return Err(format!(
                "one of {name_bytes} and {value_bytes} bytes, where {} are left",
                behind.len()
            ));
        };
        let (name, value) = content.split_at(name_bytes);
        if !put(&mut found, entry.prefix, name, value)? {
            others.push((entry.prefix, name.to_vec(), value.to_vec()));
        }
        rest = next;
    }
    Ok((found, others))
}

/// Adds an attribute. Returns false if it is not for users.
fn put(found: &mut Xattrs, prefix: u8, name: &[u8], value: &[u8]) -> std::result::Result<bool, String> {
    let begin: &[u8] = match prefix {
        xattr_prefix::USER => b"user.",
        xattr_prefix::TRUSTED => b"trusted.",
        xattr_prefix::SECURITY => b"security.",
        xattr_prefix::ACL_ACCESS => return put_acl(found, XattrName::ACL_ACCESS, value),
        xattr_prefix::ACL_DEFAULT => return put_acl(found, XattrName::ACL_DEFAULT, value),
        _ => return Ok(false),
    };
    let whole = [begin, name].concat();
    let name = XattrName::new(&whole).map_err(|error| format!("a name: {error}"))?;
    found.put(name, value.to_vec()).map(|()| true).map_err(|error| error.to_string())
}

fn put_acl(found: &mut Xattrs, name: XattrName<'static>, value: &[u8]) -> std::result::Result<bool, String> {
    let acl = acl_of(value).ok_or("an access list that is none")?;
    found.put(name, acl.to_xattr()).map(|()| true).map_err(|error| error.to_string())
}

/// Decodes an access list. Entries have an id here only if they name a user or group.
fn acl_of(value: &[u8]) -> Option<Acl> {
    let (version, mut rest) = value.split_first_chunk()?;
    (u32::from_le_bytes(*version) == ACL_VERSION).then_some(())?;
    let mut entries = Vec::new();
    while !rest.is_empty() {
        let (short, behind) = rest.split_first_chunk::<4>()?;
        let word = u64::from(u32::from_le_bytes(*short));
        rest = behind;
        let mut entry = Entry::from_word(word)?;
        if matches!(entry.tag, Tag::User | Tag::Group) {
            let (id, behind) = rest.split_first_chunk()?;
            entry.id = u32::from_le_bytes(*id);
            rest = behind;
        }
        entries.push(entry);
    }
    Acl::new(entries).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Vec<u8> {
        let mut bytes = XATTR_MAGIC.to_le_bytes().to_vec();
        bytes.extend(1_u32.to_le_bytes());
        bytes.resize(24, 0);
        bytes
    }

    #[test]
    fn entries_are_padded_to_words_and_end_with_zeros() {
        let mut bytes = header();
        bytes.extend([1, 1, 2, 0, b'a', 10, 20, 0]);
        bytes.extend([6, 2, 0, 0, b'b', b'c', 0, 0]);
        bytes.extend([7, 6, 1, 0]);
        bytes.extend(b"advise\x01\0");
        bytes.extend([0; 8]);
        let (found, others) = parse(&bytes).unwrap();
        assert_eq!(others, [(7, b"advise".to_vec(), vec![1])]);
        assert_eq!(parse(&encode(&found, &others)).unwrap(), (found.clone(), others));
        let all: Vec<_> = found.iter().collect();
        assert_eq!(all, [(&b"security.bc"[..], &[][..]), (&b"user.a"[..], &[10, 20][..])]);
    }

    #[test]
    fn what_does_not_fit_is_damage_and_no_header_is_no_attribute() {
        let mut bytes = header();
        bytes.extend([1, 200, 2, 0, b'a', 10, 20, 0]);
        assert!(parse(&bytes).unwrap_err().contains("200"));
        assert!(parse(&[0; 200]).unwrap().0.is_empty());
        assert!(parse(&[]).unwrap().0.is_empty());
    }

    #[test]
    fn a_list_gets_the_form_that_users_know() {
        let mut value = ACL_VERSION.to_le_bytes().to_vec();
        for (tag, perm, id) in
            [(1_u16, 6_u16, None), (2, 4, Some(1000_u32)), (4, 4, None), (16, 4, None), (32, 0, None)]
        {
            value.extend(tag.to_le_bytes());
            value.extend(perm.to_le_bytes());
            value.extend(id.map_or(Vec::new(), |id: u32| id.to_le_bytes().to_vec()));
        }
        let acl = acl_of(&value).unwrap();
        assert_eq!(media_acl(&acl), value);
        assert_eq!(acl.entries().len(), 5);
        assert_eq!(acl.entries()[1], Entry { tag: Tag::User, perm: 4, id: 1000 });
        assert!(acl_of(&value[..value.len() - 1]).is_none());
    }

    #[test]
    fn attributes_may_fill_their_node_but_for_the_word_that_ends_them() {
        let inline = INLINE_XATTR_SLOTS * size_of::<U32>();
        let most = inline + NODE_BODY_BYTES - ALIGN_BYTES;
        assert_eq!(need_of_bytes(inline, inline), Ok(false));
        assert_eq!(need_of_bytes(inline + 1, inline), Ok(true));
        assert_eq!(need_of_bytes(most, inline), Ok(true));
        assert_eq!(need_of_bytes(most + 1, inline), Err(Error::NoSpace));
    }

    #[test]
    fn each_prefix_stands_for_a_name_of_users() {
        let mut bytes = header();
        for (prefix, name) in [(1, b"ab"), (4, b"cd"), (6, b"ef")] {
            bytes.extend([prefix, 2, 2, 0, name[0], name[1], 8, 9]);
        }
        let mut list = ACL_VERSION.to_le_bytes().to_vec();
        for tag in [1_u16, 4, 32] {
            list.extend([tag.to_le_bytes(), 4_u16.to_le_bytes()].concat());
        }
        for prefix in [2, 3] {
            bytes.extend([prefix, 0, list.len() as u8, 0]);
            bytes.extend(&list);
        }
        let (found, others) = parse(&bytes).unwrap();
        let names: Vec<&[u8]> = found.iter().map(|(name, _)| name).collect();
        let all =
            ["security.ef", "system.posix_acl_access", "system.posix_acl_default", "trusted.cd", "user.ab"];
        assert_eq!((names, others.len()), (all.map(str::as_bytes).to_vec(), 0));
        assert_eq!(parse(&encode(&found, &others)).unwrap().0, found);
        // An entry ends with the buffer, or it does not fit.
        let mut short = header();
        short.extend([1, 1, 2, 0, b'a', 10, 20, 0]);
        assert_eq!(parse(&short).unwrap().0.iter().count(), 1);
        short.pop();
        assert!(parse(&short).is_err());
    }

    /// A header of 24 bytes, an entry's of 4, and a byte of the name: 171 bytes of a value fill 200.
    #[test]
    fn attributes_take_a_node_when_the_inode_has_no_room() {
        use crate::data::write::tests::Scene;
        use heddle_vfs::FileSystem;
        let of = |len: usize| {
            let mut xattrs = Xattrs::default();
            xattrs.put(XattrName::new(b"user.a").unwrap(), vec![7; len]).unwrap();
            xattrs
        };
        assert_eq!([171, 172].map(|len| need_of_new(&of(len))), [Ok(Need::NONE), Ok(Need::NODE)]);
        assert_eq!(need_of_new(&Xattrs::default()), Ok(Need::NONE));
        let scene = Scene::new();
        let file = scene.whole("file", 2);
        let need = |len: usize| scene.fs.media.need_of_xattrs(&scene.inode(&file), &of(len));
        let set = |len: usize| {
            let change = scene.fs.media.set_aside(need(len).unwrap()).unwrap();
            change.set_xattrs(&scene.inode(&file), &of(len)).unwrap();
        };
        let counts = || scene.fs.media.space().unwrap().counts();
        let (blocks, nodes) = (counts().blocks, counts().nodes);
        assert_eq!((need(171), need(172)), (Ok(Need::NONE), Ok(Need::NODE)));
        for (len, more) in [(171, 0), (172, 1), (3000, 1), (172, 1), (171, 0), (5, 0)] {
            set(len);
            assert_eq!(
                (scene.blocks(&file), counts().blocks, counts().nodes),
                (2 + more, blocks + more, nodes + more)
            );
            assert_eq!(scene.inode(&file).block().xattr_nid.get() != 0, more == 1);
            assert_eq!(scene.fs.media.xattrs(&scene.inode(&file)).unwrap(), of(len), "{len} bytes");
            let other = if more == 1 { Need::NONE } else { Need::NODE };
            assert_eq!((need(171), need(172)), (Ok(Need::NONE), Ok(other)));
        }
        scene.fs.sync().unwrap();
        assert_eq!(scene.fs.media.xattrs(&scene.inode(&file)).unwrap(), of(5));
    }
}
