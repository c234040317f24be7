//! What a system call does to the image.

use super::process::Process;
use heddle_f2fs::Identity;
use std::io;

/// A system call that is about to be made.
pub(super) struct Call {
    pub(super) arch: u32,
    pub(super) number: u64,
    pub(super) args: [u64; 6],
}

pub(super) enum Effect {
    None,
    /// It changes these bytes of the image.
    Write {
        at: u64,
        len_bytes: u64,
    },
    /// Something becomes durable.
    Flush,
    /// It changes what nobody knows.
    Unknown(&'static str),
}

/// `AUDIT_ARCH_*` of this program: a call of another one has other numbers.
#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xc000_00b7;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ARCH: u32 = 0;
/// Numbers from here on are those of the x32 ABI.
const X32: u64 = 0x4000_0000;
/// At most so many pieces of memory in one call.
const PIECES_MAX: u64 = 1024;
/// `iovec`: a pointer and a length.
const PIECE_BYTES: u64 = 16;

/// Requests to a block device, or a file, that only ask: its sizes, its geometry, whether it is write-protected; and BLKFLSBUF.
const ASKING: &[u32] = &[
    0x1260,      // BLKGETSIZE
    0x8008_1272, // BLKGETSIZE64
    0x1268,      // BLKSSZGET
    0x8008_1270, // BLKBSZGET
    0x127b,      // BLKPBSZGET
    0x1278,      // BLKIOMIN
    0x1279,      // BLKIOOPT
    0x127a,      // BLKALIGNOFF
    0x125e,      // BLKROGET
    0x1261,      // BLKFLSBUF
    0x301,       // HDIO_GETGEO
    0x30d,       // HDIO_GET_IDENTITY
    2,           // FIGETBSZ
    0x8004_1284, // BLKGETZONESZ
    0x8004_1285, // BLKGETNRZONES
    0xc010_1282, // BLKREPORTZONE
    0x5401,      // TCGETS
];
/// A SCSI command.
const SG_IO: u32 = 0x2285;
/// Its direction, at byte 4 of its argument: none, or from the device.
const SG_READS: [i32; 2] = [-1, -3];

pub(super) fn effect(call: &Call, process: Process, image: Identity) -> io::Result<Effect> {
    if call.arch != ARCH || call.number >= X32 {
        return Ok(Effect::Unknown("it is a program of another architecture"));
    }
    let [a, b, c, d, e, f] = call.args;
    let is_image =
        |fd: u64| process.descriptor(fd).map(|meta| meta.is_some_and(|meta| Identity::of(&meta) == image));
    let write = |fd: u64, at: Option<u64>, len: io::Result<u64>| -> io::Result<Effect> {
        if !is_image(fd)? {
            return Ok(Effect::None);
        }
        // A descriptor that appends does so whatever offset the call gives.
        match process.offset(fd)? {
            (_, true) => Ok(Effect::Unknown("it appends")),
            (here, _) => Ok(Effect::Write { at: at.unwrap_or(here), len_bytes: len? }),
        }
    };
    let refuse_if = |is: io::Result<bool>, what| Ok(if is? { Effect::Unknown(what) } else { Effect::None });
    match call.number as i64 {
        libc::SYS_write => write(a, None, Ok(c)),
        libc::SYS_pwrite64 => write(a, Some(d), Ok(c)),
        libc::SYS_writev => write(a, None, pieces(process, b, c)),
        libc::SYS_pwritev => write(a, Some(d), pieces(process, b, c)),
        // An offset of -1 is that of the descriptor.
        libc::SYS_pwritev2 if f & libc::RWF_APPEND as u64 == 0 => {
            write(a, Some(d).filter(|at| *at != u64::MAX), pieces(process, b, c))
        }
        libc::SYS_pwritev2 => refuse_if(is_image(a), "it appends"),
        libc::SYS_fsync | libc::SYS_fdatasync | libc::SYS_sync | libc::SYS_syncfs | libc::SYS_msync => {
            Ok(Effect::Flush)
        }
        libc::SYS_sync_file_range => Ok(Effect::Flush),
        libc::SYS_fallocate => refuse_if(is_image(a), "fallocate"),
        libc::SYS_ftruncate => refuse_if(is_image(a), "ftruncate"),
        libc::SYS_truncate => refuse_if(is_path_of(process, libc::AT_FDCWD as u64, a, image), "truncate"),
        libc::SYS_ioctl if ASKING.contains(&(b as u32)) => Ok(Effect::None),
        libc::SYS_ioctl => {
            refuse_if(Ok(is_image(a)? && !is_reading_command(process, b, c)?), "a request to the device")
        }
        libc::SYS_mmap => {
            let is_shared = (d & 0xf) as i32 & libc::MAP_SHARED != 0 && d as i32 & libc::MAP_ANONYMOUS == 0;
            refuse_if(Ok(is_shared && is_image(e)?), "a shared mapping")
        }
        libc::SYS_sendfile => refuse_if(is_image(a), "sendfile"),
        libc::SYS_copy_file_range => refuse_if(is_image(c), "copy_file_range"),
        libc::SYS_splice => refuse_if(is_image(c), "splice"),
        libc::SYS_io_uring_setup | libc::SYS_io_setup => Ok(Effect::Unknown("asynchronous requests")),
        libc::SYS_openat if c as i32 & libc::O_TRUNC != 0 => {
            refuse_if(is_path_of(process, a, b, image), "open with O_TRUNC")
        }
        libc::SYS_openat2 => {
            let mut flags = [0; 8];
            process.memory(c, &mut flags)?;
            let truncates = u64::from_le_bytes(flags) as i32 & libc::O_TRUNC != 0;
            refuse_if(Ok(truncates && is_path_of(process, a, b, image)?), "open with O_TRUNC")
        }
        number => old_calls(number, &call.args, process, image),
    }
}

/// Calls that newer architectures lack.
#[cfg(target_arch = "x86_64")]
fn old_calls(number: i64, args: &[u64; 6], process: Process, image: Identity) -> io::Result<Effect> {
    let truncates = match number {
        libc::SYS_open => args[1] as i32 & libc::O_TRUNC != 0,
        libc::SYS_creat => true,
        _ => false,
    };
    if truncates && is_path_of(process, libc::AT_FDCWD as u64, args[0], image)? {
        return Ok(Effect::Unknown("open with O_TRUNC"));
    }
    Ok(Effect::None)
}

#[cfg(not(target_arch = "x86_64"))]
fn old_calls(_: i64, _: &[u64; 6], _: Process, _: Identity) -> io::Result<Effect> {
    Ok(Effect::None)
}

/// Bytes of all pieces of a call.
fn pieces(process: Process, at: u64, count: u64) -> io::Result<u64> {
    // The kernel refuses more.
    let mut bytes = vec![0; (count.min(PIECES_MAX) * PIECE_BYTES) as usize];
    process.memory(at, &mut bytes)?;
    let lens = bytes.chunks_exact(PIECE_BYTES as usize).filter_map(|piece| piece[8..].first_chunk());
    Ok(lens.fold(0, |sum: u64, len| sum.saturating_add(u64::from_ne_bytes(*len))))
}

fn is_path_of(process: Process, dir_fd: u64, at: u64, image: Identity) -> io::Result<bool> {
    let path = process.path_at(dir_fd, at)?;
    Ok(std::fs::metadata(path).is_ok_and(|meta| Identity::of(&meta) == image))
}

fn is_reading_command(process: Process, request: u64, at: u64) -> io::Result<bool> {
    if request as u32 != SG_IO {
        return Ok(false);
    }
    let mut head = [0; 8];
    process.memory(at, &mut head)?;
    let direction = i32::from_ne_bytes([head[4], head[5], head[6], head[7]]);
    Ok(SG_READS.contains(&direction))
}
