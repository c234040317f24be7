//! The machine: its usable CPUs, their order, and its description in a report.

use serde::Serialize;
use std::{fs, io, mem};

/// The description of the machine in a report. It has no host name: reports are shown around.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// As the kernel names it.
    pub cpu_model: String,
    /// CPUs this process may use.
    pub cores: usize,
    /// Release of the kernel.
    pub kernel: String,
    /// Processor architecture.
    pub arch: &'static str,
    /// Memory in bytes.
    pub memory_bytes: u64,
}

impl Machine {
    /// This machine.
    pub fn here() -> Machine {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let model = field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| "unknown".to_owned());
        Machine {
            cpu_model: model,
            cores: allowed_cpus().len(),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            arch: std::env::consts::ARCH,
            memory_bytes: meminfo_bytes("MemTotal"),
        }
    }
}

/// CPUs this process may use, in the order workers take them: first one thread of each physical core, socket by socket
/// (as FxMark does), then the cores' other threads.
pub(crate) fn allowed_cpus() -> Vec<usize> {
    // SAFETY: zero bytes are an empty set.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: room for the answer.
    if unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) } != 0 {
        return vec![0];
    }
    // SAFETY: inside the set's bounds.
    let allowed = (0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) });
    let mut cpus: Vec<usize> = allowed.collect();
    let number = |cpu: usize, file: &str| -> usize {
        let text = fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/topology/{file}"));
        text.ok().and_then(|t| t.trim().parse().ok()).unwrap_or(0)
    };
    cpus.sort_by_cached_key(|&cpu| {
        let siblings =
            fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"));
        (rank(&siblings.unwrap_or_default(), cpu), number(cpu, "physical_package_id"), cpu)
    });
    cpus
}

/// The rank of a CPU among its core's threads: its place in a list such as `0-1` or `0,56`.
fn rank(siblings: &str, cpu: usize) -> usize {
    let mut before = 0;
    for range in siblings.trim().split(',') {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let (Ok(from), Ok(to)) = (from.parse::<usize>(), to.parse::<usize>()) else { return 0 };
        before += cpu.clamp(from, to + 1) - from;
    }
    before
}

/// Pins the calling thread to a CPU.
pub(crate) fn pin(cpu: usize) -> io::Result<()> {
    // SAFETY: zero bytes are an empty set; `cpu` came from a set of this size.
    let rc = unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set)
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Memory available without swapping, in bytes; 0 if the kernel does not tell.
pub fn memory_available_bytes() -> u64 {
    meminfo_bytes("MemAvailable")
}

fn meminfo_bytes(key: &str) -> u64 {
    let value = field(&fs::read_to_string("/proc/meminfo").unwrap_or_default(), key);
    let kib = value.and_then(|v| v.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// The value of the first `key : value` line.
fn field(text: &str, key: &str) -> Option<String> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.into_iter().find(|(k, _)| k.trim() == key).map(|(_, v)| v.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_thread_of_every_core_comes_before_any_second() {
        assert_eq!((rank("0-1", 0), rank("0-1", 1)), (0, 1));
        assert_eq!((rank("3,59", 3), rank("3,59", 59)), (0, 1));
        assert_eq!((rank("7", 7), rank("", 7)), (0, 0));
    }

    #[test]
    fn this_machine_is_described() {
        let here = Machine::here();
        assert!(here.cores >= 1 && here.memory_bytes > 1 << 20 && !here.kernel.is_empty());
    }
}
