//! What a client believes of an answer, and what it says about one that it does not.

use super::*;
use crate::state::lease;
use crate::volume::{MountOptions, format, mount};
use rustix::fs::MemfdFlags;
use rustix::net::{accept, bind, listen};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Attaches to a daemon that gives this answer with these descriptors.
fn told(answer: Answer, fds: &[BorrowedFd<'_>]) -> Result<NvmFs, AttachError> {
    answered(answer, fds, |at| attach(at))
}

/// What `client` makes of the socket of a daemon that answers once.
fn answered<T>(answer: Answer, fds: &[BorrowedFd<'_>], client: impl FnOnce(&Path) -> T) -> T {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("attach");
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    bind(&socket, &SocketAddrUnix::new(&at).unwrap()).unwrap();
    listen(&socket, 1).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let peer = accept(&socket).unwrap();
            wire::receive(&peer, &mut [0; 100], RecvFlags::empty()).unwrap();
            wire::send(&peer, answer.as_bytes(), fds).unwrap();
        });
        client(&at)
    })
}

#[test]
fn an_answer_that_contradicts_the_memory_is_refused_by_name() {
    // The smallest region that there is.
    let region = Region::anonymous(4 << 20).unwrap();
    format(&region, Variant::Heddle).unwrap();
    let volume = mount(region, &MountOptions { arena_bytes: 64 << 20, ..MountOptions::default() }).unwrap();
    let core = volume.fs().core;
    let identity = core.identity();
    let of_image = |path: &[u8]| {
        let mut answer = Answer::welcome(path);
        (answer.uuid, answer.boot, answer.epoch) = (identity.uuid, identity.boot, identity.epoch);
        (answer.region_bytes, answer.arena_bytes) = (4 << 20, core.arena.capacity_bytes());
        (answer.variant, answer.durability) = (core.variant.raw(), core.region.durability().raw());
        answer
    };
    let right = of_image(b"/some/image");
    let fds = [core.region.fd().unwrap(), core.arena.fd().unwrap()];
    let fs = told(right, &fds).unwrap();
    assert_eq!(fs.core.region.path(), Some(Path::new("/some/image")));
    drop(fs);
    type Forge = fn(&mut Answer);
    let wrong: [(Forge, &str); 11] = [
        (|it| it.boot[0] ^= 1, "another boot"),
        (|it| it.region_bytes -= 4096, "length of the region"),
        (|it| it.region_bytes += 1, "length of the region"),
        (|it| it.durability = 0, "the durability"),
        (|it| it.variant = 0, "the variant"),
        (|it| it.variant += 100, "the variant"),
        // Its locks are in another process.
        (|it| it.variant = Variant::NovaArray.raw(), "the variant"),
        (|it| it.arena_bytes += 1, "length of the arena"),
        (|it| it.epoch += 1, "not that of this mount"),
        (|it| it.uuid[15] ^= 1, "not that of this mount"),
        (|it| it.token[15] = 1, "does not know our token"),
    ];
    for (change, what) in wrong {
        let mut answer = right;
        change(&mut answer);
        let said = told(answer, &fds).err().map(|error| error.to_string());
        assert!(said.as_ref().is_some_and(|said| said.contains(what)), "{what}: {said:?}");
    }
    let said = told(right, &fds[..1]).err().unwrap().to_string();
    assert!(said.contains("descriptors are missing"), "{said}");
    assert_eq!(told(of_image(b""), &fds).unwrap().core.region.path(), None);
    lease::leave(&core);
    drop(core);
    volume.unmount();
}

#[test]
fn a_reading_that_could_still_change_is_refused() {
    let file = rustix::fs::memfd_create("unsealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    let read = answered(Answer::welcome(b""), &[file.as_fd()], |at| counters(at));
    let said = read.err().unwrap().to_string();
    assert!(said.contains("not sealed"), "{said}");
}

/// The kernel says only that there is no memory.
#[test]
fn a_mapping_refused_under_a_limit_names_limit_and_need() {
    let mut answer = Answer::welcome(b"");
    (answer.region_bytes, answer.arena_bytes) = ((6 << 20) + 1, 1 << 20);
    let at = AttachAddress::from(Path::new("/s"));
    let old = getrlimit(Resource::As);
    let limit = old.current.unwrap_or(1 << 50);
    setrlimit(Resource::As, Rlimit { current: Some(limit), maximum: old.maximum }).unwrap();
    let refused = [Some(Errno::NOMEM), Some(Errno::ACCESS), None];
    let [memory, access, other] = refused.map(|refused| not_mapped(at, &answer, refused, "why"));
    setrlimit(Resource::As, old).unwrap();
    // 7 MiB and a byte.
    let kib = (7169, limit >> 10);
    assert!(
        matches!(memory, AttachError::Addresses { wanted_kib, limit_kib, .. } if (wanted_kib, limit_kib) == kib),
        "{memory}"
    );
    for error in [access, other] {
        assert_eq!(error.to_string(), "cannot attach through /s: why");
    }
    let system = |errno| heddle_pmem::Error::System { action: "map", path: "/s".into(), errno };
    assert_eq!(region_refused(&system(Errno::NOMEM)), Some(Errno::NOMEM));
    assert_eq!(region_refused(&heddle_pmem::Error::Exists { path: "/s".into() }), None);
    let source = io::Error::from_raw_os_error(libc::ENOMEM);
    let existing = heddle_arena::MapError::Existing { capacity_bytes: 1, source };
    assert_eq!(arena_refused(&existing), Some(Errno::NOMEM));
    assert_eq!(arena_refused(&heddle_arena::MapError::Foreign), None);
}
