//! Paths of directories, kept as their names and what is above each: a walk meets a directory once, after the one above it.

/// Longest path that is shown whole.
const SHOWN_BYTES: usize = 2000;

/// A directory that was met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DirNo(u32);

impl DirNo {
    pub(crate) const ROOT: DirNo = DirNo(0);
}

/// All of them.
pub(crate) struct Paths {
    dirs: Vec<(DirNo, Box<[u8]>)>,
}

impl Paths {
    pub(crate) fn new() -> Paths {
        Paths { dirs: vec![(DirNo::ROOT, Box::default())] }
    }

    /// The directory of this name.
    pub(crate) fn add(&mut self, above: DirNo, name: &[u8]) -> DirNo {
        // There are no more directories than numbers of nodes.
        let dir = DirNo(self.dirs.len() as u32);
        self.dirs.push((above, name.into()));
        dir
    }

    /// As it is shown: what is no text stands as an escape.
    pub(crate) fn shown(&self, mut dir: DirNo, name: Option<&[u8]>) -> String {
        let mut names: Vec<&[u8]> = name.into_iter().collect();
        let mut bytes = 0;
        while dir != DirNo::ROOT && bytes < SHOWN_BYTES {
            let (above, name) = &self.dirs[dir.0 as usize];
            bytes += name.len() + 1;
            names.push(name);
            dir = *above;
        }
        let start = if dir == DirNo::ROOT { "/" } else { "…/" };
        let shown = names.iter().rev().map(|name| String::from_utf8_lossy(name).escape_debug().to_string());
        start.to_owned() + &shown.collect::<Vec<_>>().join("/")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_shown_from_the_root_and_without_control_characters() {
        let mut paths = Paths::new();
        let a = paths.add(DirNo::ROOT, b"a");
        let b = paths.add(a, b"\x1b[2J\n");
        assert_eq!(paths.shown(DirNo::ROOT, None), "/");
        assert_eq!(paths.shown(a, Some("ü".as_bytes())), "/a/ü");
        assert_eq!(paths.shown(b, Some(b"x")), "/a/\\u{1b}[2J\\n/x");
        let deep = (0..5000).fold(a, |above, _| paths.add(above, b"d"));
        let shown = paths.shown(deep, None);
        assert!(shown.starts_with("…/d/d") && shown.len() < 3 * SHOWN_BYTES, "{}", shown.len());
    }
}
