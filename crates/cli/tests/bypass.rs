//! Programs with the bypass preloaded, and the C API: they do what they do on the kernel's own file systems, and the engine serves
//! them.

mod common;

use common::traps::{C_API, TRAPS, compiled, run, sum, went_well};
use common::{Mounted, Place, alone, build_preload, command};
use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

traps! {
    every_call_that_is_served_gives_what_the_kernel_gives = "plain", ["read", "write", "seek", "sync", "stat", "resize"];
    wrong_calls_fail_with_the_kernels_numbers = "errors", ["opened", "write"];
    a_buffer_that_is_not_there_is_an_error_and_not_the_end = "bad_buffers", ["write", "read"];
    a_buffer_that_goes_in_the_middle_of_a_read_is_not_the_end = "taken_away", ["write", "read"];
    a_buffer_that_goes_in_the_middle_of_a_write_is_not_the_end = "buffers/taken_from_writes", ["write"];
    a_buffer_whose_file_is_cut_in_the_middle_of_a_write_is_not_the_end = "buffers/cut_from_writes", ["write"];
    a_vector_whose_buffer_goes_moves_no_offset = "buffers/taken_from_vectors", ["write", "read"];
    half_a_mapping_is_written_as_the_kernel_writes_it = "buffers/cut_short", ["write"];
    what_a_program_does_about_its_own_faults_stays = "buffers/handlers", ["write"];
    a_handler_set_in_older_ways_is_not_called_for_a_buffer = "buffers/set", ["write"];
    a_vector_longer_than_its_file_takes_no_memory = "buffers/long", ["write", "read"];
    duplicates_share_the_offset = "dup", ["write"];
    a_forked_child_shares_the_offset = "fork", ["write"];
    programs_that_are_started_share_the_offset = "exec", ["write"];
    the_child_of_a_vfork_changes_nothing_of_its_parents = "vfork", ["write", "read"];
    a_number_means_what_was_opened_last_under_it = "stale", ["write"];
    stdio_and_descriptors_mix = "stdio", ["write"];
    appends_of_many_processes_are_all_there = "appends", ["write"];
    a_mapping_and_writes_beside_it_lose_nothing = "mappings", ["write"];
    /// A handler that writes while its thread is inside the engine.
    handlers_of_signals_may_write = "handlers", ["write", "read"];
    a_file_may_be_closed_under_its_writers = "closed", ["write"];
    the_kernels_own_copies_see_the_offset_and_the_size = "copies", ["write"];
    ranges_are_copied_between_files = "ranges", ["write", "read"];
    the_limit_of_the_file_size_holds = "limits", [];
    /// The handler's line overwrote the first bytes of the file.
    handlers_of_signals_share_the_offset = "offsets/handlers", ["write"];
    /// It ended the mount of all.
    a_handler_set_in_older_ways_may_append = "offsets/older", ["write"];
    a_handler_on_a_stack_of_its_own_may_be_left_by_longjmp = "offsets/jumps", ["write"];
    a_handler_may_close_while_its_thread_allocates = "offsets/closing", ["write"];
    children_made_by_clone_share_the_offset = "offsets/children", ["write"];
    who_gets_a_descriptor_in_a_message_shares_the_offset = "offsets/sent", ["write"];
    duplicates_made_by_system_calls_share_the_offset = "offsets/numbers", ["write"];
    a_call_that_fails_changes_no_number = "offsets/refused", ["write"];
    /// It moved the offset of a file that lay on another file system.
    a_fork_moves_no_offset_of_what_replaces_a_file = "offsets/replaced", ["write"];
    an_append_leaves_the_offset_at_the_end = "offsets/appending", ["write"];
    o_append_counts_for_all_who_share_the_open_file = "offsets/setting", ["write"];
    a_thread_with_numbers_of_its_own_closes_nothing_of_others = "offsets/unshared", ["write", "not_taken"];
    a_range_that_is_closed_for_one_thread_stays_open_for_others = "offsets/closed_apart", ["write"];
    a_child_that_shares_the_numbers_may_swap_files = "offsets/swapped", ["write"];
    /// What one thread wrote to a file elsewhere went to the mount's file.
    threads_may_part_before_the_program_meets_the_mount = "offsets/apart_before", [];
    /// The next write began at offset 0.
    a_thread_made_with_numbers_of_its_own_closes_nothing_of_others = "offsets/apart_thread", ["write"];
    /// The parent wrote to the mount's file instead of the one that its child had opened.
    a_child_that_shares_memory_and_numbers_may_swap_files = "offsets/swapped_for_both", ["write"];
    the_kernel_counts_from_the_end_that_was_written = "offsets/from_the_end", ["write"];
    of_two_mistakes_the_kernels_is_reported = "edges/errors", ["write"];
    of_an_address_that_cannot_be_nothing_is_moved = "edges/never", ["write", "read"];
    offsets_near_the_largest_are_as_the_kernel_has_them = "edges/ends", ["seek"];
    what_fits_into_half_a_buffer_is_moved = "edges/more", ["read"];
    the_limit_of_the_file_size_holds_for_appends_at_an_offset = "edges/limits", ["write"];
    /// The kernel took the limit for reached, or not, by a size from before.
    the_limit_of_the_file_size_holds_for_writes_of_a_handler = "edges/handlers", ["resize"];
    the_limit_of_the_file_size_holds_for_changes_of_the_size = "edges/sizes", ["resize"];
    a_copy_to_a_place_beyond_the_limit_of_the_file_size_fails = "edges/copies", ["write"];
    cutting_out_a_range_is_answered_alike_mapped_or_not = "edges/cutting", ["resize"];
    /// A program went on reading and changing files that only root may, through its mapping.
    who_gives_up_rights_has_no_image_mapped_any_more = "rights/ids", ["write", "read"];
    a_core_is_no_copy_of_image_and_mounts_memory = "rights/undumped", ["write"];
    /// It took 64 GiB.
    a_program_that_locks_its_memory_has_no_image_mapped = "rights/locked", ["write", "not_taken"];
    a_handler_may_give_up_rights = "rights/handler", ["write"];
    a_thread_that_may_only_read_and_write_does = "rights/strict", ["write", "seek"];
    /// Opening its first file of a mount under the filter ended the program.
    a_program_behind_a_filter_of_system_calls_attaches_to_nothing = "rights/filtered", [];
    /// It ended at its start, or at its first open.
    a_program_born_under_a_deadly_filter_lives = "rights/born_filtered", [];
    /// The library's own child was process 1 of the new namespace, and ended it.
    a_filtered_program_in_unshare_pid_may_make_children = "rights/born_outside", [];
    /// They left the table, and the next write began at offset 0.
    numbers_that_a_filter_keeps_open_keep_their_offset = "rights/born_without_ranges", ["write"];
    a_filter_that_refuses_membarrier_changes_nothing = "rights/born_without_barriers", ["write", "opened"];
    /// A touch of what the program itself had added was its end.
    a_file_that_grows_under_its_mapping_is_there = "edges/grown", ["write", "resize"];
    what_is_stored_to_a_mapping_is_data_for_lseek = "edges/mapped_data", ["write", "resize"];
    a_thread_that_writes_for_ever_can_be_cancelled = "edges/cancelled", ["write"];
    a_thread_that_waits_in_the_kernel_can_be_cancelled = "edges/cancelled_in_the_kernel", ["write"];
}

/// The filter was looked for when this library started, after the constructors of others.
#[test]
fn constructors_may_open_files_and_fork_under_a_deadly_filter() {
    common::traps::trap_with("early/opened", &[], &["opens_early"]);
}

/// The mount cannot tell it from a write that appends, and would append.
#[test]
fn a_write_that_is_not_to_append_is_refused() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
    let script = "import os,errno\nf=os.open('{f}',os.O_RDWR|os.O_CREAT|os.O_APPEND)\nos.write(f,b'0123456789')\n\
                  try: os.pwritev(f,[b'X'],2,0x20); raise SystemExit('it was written')\n\
                  except OSError as e: assert e.errno == errno.EOPNOTSUPP, e\n\
                  assert os.pread(f,20,0) == b'0123456789'";
    let script = script.replace("{f}", mounted.path("file").to_str().unwrap());
    went_well(&run(&place, &["python3", "-c", &script]).0);
}

#[test]
fn everyday_programs_are_served_and_leave_the_same_files() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
    let to = format!("of={}", mounted.path("dd").display());
    let (out, report) = run(&place, &["dd", "if=/dev/urandom", &to, "bs=4k", "count=256"]);
    went_well(&out);
    assert_eq!(
        (sum(&report, "write"), sum(&report, "bytes_written")),
        (256 - 256, 0),
        "dd writes to descriptor 1: stdio's"
    );
    let script = "import os\nf=os.open('{dir}/py',os.O_RDWR|os.O_CREAT)\nfor i in range(100): os.pwrite(f,b'%04d'%i,4*i)\n\
                  print(os.pread(f,8,0), os.fstat(f).st_size)";
    let script = script.replace("{dir}", &place.mnt());
    let (out, report) = run(&place, &["python3", "-c", &script]);
    went_well(&out);
    assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), "b'00000001' 400");
    assert_eq!(sum(&report, "bytes_written"), 400);
    assert_eq!(fs::read(mounted.path("py")).unwrap().len(), 400);
    assert_eq!(fs::metadata(mounted.path("dd")).unwrap().len(), 1 << 20);
}

/// It forks while its log is open, as redis-server does, and goes on when the child is gone in one way or another.
const FORKS: &str = r"
import os, sys
path, how, flag = sys.argv[1], sys.argv[2], int(sys.argv[3])
f = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | flag)
def log(first, end):
    for i in range(first, end): os.write(f, b'%04d' % i)
go, gone = os.pipe(), os.pipe()
log(0, 50)
if os.fork() == 0:
    os.close(go[1])
    if how != 'stays': os.read(go[0], 1)
    if how == 'writes': os.write(f, b'0100')
    if how == 'closes': os.close(f); os.write(gone[1], b'x'); os.read(go[0], 1)
    if how == 'hands on': os.set_inheritable(f, True)
    if how in ('executes', 'hands on'): os.execvp('true', ['true'])
    if how == 'stays': os.read(go[0], 1); log(100, 150)
    os._exit(0)
log(50, 100)
if how == 'stays': os._exit(0)
os.close(gone[1]); os.write(go[1], b'x'); os.read(gone[0], 1)
log(101 if how == 'writes' else 100, 150)
";

#[test]
fn a_forks_shared_offset_is_served_again_by_the_last_process() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    let _mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
    let (log, appends) = (place.path("mnt/log"), libc::O_APPEND);
    // How it goes on; served; passed on. What appends is served also while both have it.
    let cases = [
        ("ends", appends, 150, 0),
        ("ends", 0, 100, 50),
        ("closes", 0, 100, 50),
        ("executes", 0, 100, 50),
        ("hands on", 0, 50, 100),
        ("writes", 0, 99, 51),
        ("stays", 0, 100, 50),
    ];
    for (how, flag, served, passed) in cases {
        let (out, report) =
            run(&place, &["python3", "-c", FORKS, log.to_str().unwrap(), how, &flag.to_string()]);
        went_well(&out);
        let all: String = (0..150).map(|i| format!("{i:04}")).collect();
        assert_eq!(fs::read_to_string(&log).unwrap(), all, "{how}");
        let said: u64 = report.iter().filter_map(|line| line["passed_on"]["kernel_offset"].as_u64()).sum();
        assert_eq!((sum(&report, "write"), said), (served, passed), "{how}: {report:?}");
    }
}

fn until(mut holds: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !holds() {
        assert!(begun.elapsed() < std::time::Duration::from_secs(30), "it never comes");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// A line to redis-server, and the first line of what it answers; a text is read whole.
fn redis(to: &mut UnixStream, line: &str) -> String {
    writeln!(to, "{line}\r").unwrap();
    let (mut said, mut piece) = (Vec::new(), [0_u8; 16384]);
    loop {
        let n = to.read(&mut piece).unwrap();
        said.extend(&piece[..n]);
        let text = String::from_utf8_lossy(&said);
        let whole = match text.strip_prefix('$').and_then(|text| text.split_once("\r\n")) {
            Some((len, text)) => text.len() == len.parse::<usize>().unwrap() + 2,
            None => text.ends_with("\r\n"),
        };
        if n == 0 || whole {
            return text.into_owned();
        }
    }
}

#[test]
fn redis_servers_log_is_served_before_and_after_it_is_written_anew() {
    if Command::new("redis-server").arg("--version").output().is_err() {
        eprintln!("SKIPPED, NOT TESTED: there is no redis-server");
        return;
    }
    let Some(_alone) = alone() else { return };
    build_preload();
    let place = Place::with_image("heddle");
    let _mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
    let (socket, report) = (place.path("redis"), place.path("report"));
    let options = ["--port", "0", "--appendonly", "yes", "--save", "", "--logfile", "/dev/null"];
    let mut server = command(&["run", "--", "redis-server"])
        .args(options)
        .arg("--unixsocket")
        .arg(&socket)
        .args(["--dir", &place.mnt()])
        .env("HEDDLE_REPORT", &report)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    until(|| UnixStream::connect(&socket).is_ok());
    let mut to = UnixStream::connect(&socket).unwrap();
    let set = |numbers: Range<u32>, to: &mut UnixStream| {
        numbers.for_each(|i| assert_eq!(redis(to, &format!("SET key{i} value{i}")), "+OK\r\n"));
    };
    set(0..200, &mut to);
    assert!(redis(&mut to, "BGREWRITEAOF").contains("rewriting started"));
    let done = "aof_rewrite_in_progress:0";
    until(|| redis(&mut to, "INFO persistence").contains(done));
    set(200..400, &mut to);
    let _it_ends = writeln!(to, "SHUTDOWN\r");
    assert!(server.wait().unwrap().success());
    let report = fs::read_to_string(report).unwrap();
    let lines: Vec<serde_json::Value> =
        report.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let passed: u64 = lines.iter().filter_map(|line| line["passed_on"]["kernel_offset"].as_u64()).sum();
    assert!(sum(&lines, "write") >= 400 && passed < 10, "{report}");
    let logs = fs::read_dir(place.path("mnt/appendonlydir")).unwrap();
    let logs: Vec<Vec<u8>> = logs.map(|entry| fs::read(entry.unwrap().path()).unwrap()).collect();
    let holds =
        |value: &str| logs.iter().any(|log| log.windows(value.len()).any(|at| at == value.as_bytes()));
    assert!((0..400).all(|i| holds(&format!("value{i}"))), "a value is missing");
}

#[test]
fn processes_that_end_together_leave_a_line_of_report_each() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    let _mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
    let Some(program) = compiled(&place, &format!("{TRAPS}/ends_together.c"), &[]) else { return };
    let report = place.text("report");
    let (out, _) = run(&place, &[program.to_str().unwrap(), &report]);
    went_well(&out);
}

#[test]
fn the_python_example_loses_no_record_on_mount_and_bypass() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
    let example = format!("{C_API}/examples/records.py");
    let plain =
        Command::new("python3").args([&example, mounted.path("a").to_str().unwrap()]).output().unwrap();
    went_well(&plain);
    let (out, report) = run(&place, &["python3", &example, mounted.path("b").to_str().unwrap()]);
    went_well(&out);
    assert_eq!(plain.stdout, out.stdout);
    assert!(sum(&report, "write") >= 1000, "{report:?}");
}

#[test]
fn the_example_in_c_compiles_without_a_warning_and_counts_right() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    let libraries = build_preload().to_str().unwrap();
    let (include, libs) = (format!("-I{C_API}/include"), format!("-L{libraries}"));
    let strict = [
        "-std=c99",
        "-pedantic",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-D_DEFAULT_SOURCE",
        &include,
        &libs,
        "-lheddle",
    ];
    let Some(program) = compiled(&place, &format!("{C_API}/examples/counter.c"), &strict) else { return };
    let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
    let run =
        |file: &Path| Command::new(&program).arg(file).env("LD_LIBRARY_PATH", libraries).output().unwrap();
    let out = run(&mounted.path("counts"));
    went_well(&out);
    assert_eq!(String::from_utf8_lossy(&out.stdout), "4000 of 4000, 32 bytes, descriptor open\n");
    let elsewhere = run(&place.path("counts"));
    let said = String::from_utf8_lossy(&elsewhere.stderr).into_owned();
    assert!(!elsewhere.status.success() && said.contains("heddle mount IMAGE DIR"), "{said}");
}

/// The header promised all of a write, or nothing.
#[test]
fn a_program_in_c_is_told_how_much_was_written() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    let libraries = build_preload().to_str().unwrap();
    let (include, libs) = (format!("-I{C_API}/include"), format!("-L{libraries}"));
    let Some(program) = compiled(&place, &format!("{TRAPS}/api.c"), &[&include, &libs, "-lheddle"]) else {
        return;
    };
    let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
    let mut program = Command::new(&program);
    went_well(&program.arg(mounted.path("file")).env("LD_LIBRARY_PATH", libraries).output().unwrap());
}

/// It waited for ever for the thread that was attaching.
#[test]
fn a_child_forked_beside_an_attach_in_c_may_attach() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    let libraries = build_preload().to_str().unwrap();
    let (include, libs) = (format!("-I{C_API}/include"), format!("-L{libraries}"));
    let extra = [&*include, &*libs, "-lheddle", "-pthread", "-rdynamic"];
    let Some(program) = compiled(&place, &format!("{TRAPS}/api_forks.c"), &extra) else { return };
    let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
    let mut program = Command::new(&program);
    went_well(&program.arg(mounted.path("")).env("LD_LIBRARY_PATH", libraries).output().unwrap());
}

#[test]
fn attach_group_members_are_served_without_rights_to_the_image() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    fs::set_permissions(place.path(""), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(place.image(), Permissions::from_mode(0o600)).unwrap();
    let mounted = Mounted::new(&place, &["-o", "log=/dev/null,attach-group=54321"]);
    fs::set_permissions(place.mnt(), Permissions::from_mode(0o777)).unwrap();
    let (heddle, report) = (env!("CARGO_BIN_EXE_heddle"), place.path("report"));
    build_preload();
    fs::File::create(&report).unwrap().set_permissions(Permissions::from_mode(0o666)).unwrap();
    let write = format!("import os; os.write(os.open('{}', 65), b'x')", mounted.path("file").display());
    let mut member = Command::new("setpriv");
    member.args([
        "--reuid",
        "65534",
        "--regid",
        "54321",
        "--clear-groups",
        "--",
        heddle,
        "run",
        "--",
        "python3",
        "-c",
    ]);
    let out = member.arg(write).env("HEDDLE_REPORT", &report).output().unwrap();
    if String::from_utf8_lossy(&out.stderr).contains("ermission denied") {
        eprintln!("SKIPPED, NOT TESTED: others than root cannot reach {heddle}");
        return;
    }
    went_well(&out);
    let lines = fs::read_to_string(report).unwrap();
    let lines: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((sum(&lines, "write"), sum(&lines, "not_taken")), (1, 0), "{lines:?}");
    assert_eq!(fs::read(mounted.path("file")).unwrap(), b"x");
}

/// stress-ng kills its children, one of them while it wrote its line: the next process's stood behind the beginning of that one.
#[test]
fn a_report_starts_a_new_line_after_a_cut_one() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
    build_preload();
    let (report, file) = (place.path("report"), mounted.path("file"));
    for before in ["", "{\"pid\":1,\"program\":\"/bin/"] {
        fs::write(&report, before).unwrap();
        let write = ["run", "--", "dd", "if=/dev/zero", "bs=4096", "count=3", "status=none"];
        let to = format!("of={}", file.display());
        went_well(&command(&[&write[..], &[&to]].concat()).env("HEDDLE_REPORT", &report).output().unwrap());
        let text = fs::read_to_string(&report).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 1 + usize::from(!before.is_empty()), "{text}");
        let last: serde_json::Value = serde_json::from_str(lines.last().unwrap()).unwrap();
        assert_eq!(last["opened"], 1, "{text}");
    }
}

/// What databases do before they read: the kernel's read-ahead would fill its pages, which count as a mapping.
const ADVICE: &str = "
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.readahead.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_size_t]
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_TRUNC)
os.write(fd, bytes(100000))
assert libc.readahead(fd, 0, 100000) == 0
for advice in range(6):
    os.posix_fadvise(fd, 0, 100000, advice)
try:
    os.posix_fadvise(fd, 0, 0, 99)
    sys.exit('no such advice')
except OSError as error:
    assert error.errno == 22
assert os.pread(fd, 10, 5) == bytes(10)
";

/// The image is mapped by the program, and again by each child of it that writes.
#[test]
fn a_program_with_the_image_mapped_is_served_and_its_children() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
    let file = mounted.path("prefaulted");
    let script = "import os,sys\nf=os.open(sys.argv[1],os.O_RDWR|os.O_CREAT)\n\
                  def shared(): return [int(l.split()[1]) for l in open('/proc/self/status') if 'RssShmem' in l][0]\n\
                  for child in range(3):\n  if os.fork()==0:\n    before=shared()\n    \
                  for i in range(500): os.pwrite(f,bytes([65+child])*4096,4096*(500*child+i))\n    \
                  os._exit(before>4096 or shared()<8192)\n\
                  print([os.wait()[1] for child in range(3)])";
    build_preload();
    let report = place.path("report");
    let mut run = command(&["run", "--prefault", "--", "python3", "-c", script]);
    let out = run.arg(&file).env("HEDDLE_REPORT", &report).output().unwrap();
    went_well(&out);
    assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), "[0, 0, 0]", "a child has not mapped the image");
    let wanted: Vec<u8> = (0..3).flat_map(|child| vec![b'A' + child; 4096 * 500]).collect();
    let found = fs::read(&file).unwrap();
    assert!(found == wanted, "{} bytes", found.len());
    assert!(fs::read_to_string(report).unwrap().contains("\"write\":"));
}

#[test]
fn what_cp_copies_goes_past_the_kernel() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
    let bytes: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
    fs::write(place.path("source"), &bytes).unwrap();
    let (first, second) = (mounted.path("first"), mounted.path("second"));
    let copies = [(place.path("source"), &first), (first.clone(), &second)];
    for (from, to) in copies {
        let (out, report) = run(&place, &["cp", from.to_str().unwrap(), to.to_str().unwrap()]);
        went_well(&out);
        assert_eq!(fs::read(to).unwrap(), bytes);
        assert_eq!(sum(&report, "bytes_written"), bytes.len() as u64, "{report:?}");
        assert!(report.iter().all(|line| line["passed_on"]["kernel_offset"] == 0), "{report:?}");
    }
}

#[test]
fn advice_about_reading_does_not_take_a_file_away_from_the_bypass() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
    let (out, report) = run(&place, &["python3", "-c", ADVICE, mounted.path("file").to_str().unwrap()]);
    went_well(&out);
    let mapped: u64 = report.iter().map(|line| line["passed_on"]["mapped"].as_u64().unwrap()).sum();
    assert_eq!((mapped, sum(&report, "advise"), sum(&report, "read")), (0, 8, 1), "{report:?}");
}

#[test]
fn what_cannot_be_run_or_attached_to_is_said_in_words() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    build_preload();
    common::heddle(&["run", "--", "/no/such/program"]).failed(127, &["/no/such/program"]);
    common::heddle(&["run", "--", "/dev"]).failed(126, &["/dev"]);
    common::heddle(&["run", "--image", &place.image(), "--", "true"])
        .failed(1, &["is not mounted", "heddle mount"]);
    let mounted = Mounted::new(&place, &["-o", "no_attach,log=/dev/null"]);
    let file = mounted.path("file");
    let (out, report) = run(
        &place,
        &["python3", "-c", &format!("import os; os.write(os.open('{}', 65), b'x')", file.display())],
    );
    went_well(&out);
    assert_eq!(fs::read(file).unwrap(), b"x", "without an engine to attach to it works through the mount");
    assert_eq!((sum(&report, "not_taken"), sum(&report, "write")), (1, 0));
    let whys: Vec<&str> = report.iter().filter_map(|line| line["refused"][0].as_str()).collect();
    assert!(whys.len() == 1 && whys[0].contains("no_attach"), "{report:?}");
}

/// It spoke of an arena of 0 bytes, and not of the limit.
#[test]
fn a_limit_on_addresses_is_named_where_it_hinders() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
    let file = mounted.path("file");
    let write = "ulimit -v 300000; exec python3 -c 'import os, sys; os.write(os.open(sys.argv[1], 65), b\"x\")' \"$0\"";
    let (out, report) = run(&place, &["sh", "-c", write, file.to_str().unwrap()]);
    went_well(&out);
    assert_eq!(fs::read(file).unwrap(), b"x", "it works through the mount");
    let why = report.iter().find_map(|line| line["refused"][0].as_str()).unwrap();
    let wanted = format!("{} KiB", (64 << 20) + (8 << 10));
    assert!(["ulimit -v", "Raise", "300000 KiB", &wanted].iter().all(|what| why.contains(what)), "{why}");
}

/// What a program finds that `heddle run` starts: closed and open numbers, and whether SIGPIPE is ignored.
const FINDS: &str =
    "for n in 0 1 2; do [ -e /proc/self/fd/$n ] && printf $n >&9; done; grep SigIgn /proc/self/status >&9";

#[test]
fn run_passes_signals_and_closed_descriptors_and_needs_little_memory() {
    let Some(_alone) = alone() else { return };
    let library = build_preload().join("libheddle_preload.so");
    let heddle = env!("CARGO_BIN_EXE_heddle");
    let run = |before: &str| {
        let script = format!("exec 9>&1; {before}");
        let mut shell = Command::new("bash");
        shell.args(["-c", &script]).env("HEDDLE_PRELOAD", &library).env("FINDS", FINDS).env("H", heddle);
        let out = shell.stdin(std::process::Stdio::null()).output().unwrap();
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
    };
    for around in ["", "exec 0<&-;", "exec 2>&-;", "trap '' PIPE;", "trap '' PIPE; exec 0<&- 1>&-;"] {
        let plain = run(&format!("{around} exec bash -c \"$FINDS\""));
        assert_eq!(run(&format!("{around} exec $H run -- bash -c \"$FINDS\"")), plain, "{around}");
    }
    assert_eq!(run("ulimit -v 300000; $H run -- true; echo $?"), "0\n");
    assert_eq!(run("ulimit -s 64; $H run -- true; echo $?"), "0\n");
}

#[test]
fn a_program_started_by_another_name_keeps_its_name() {
    let Some(_alone) = alone() else { return };
    let mut command = Command::new(env!("CARGO_BIN_EXE_heddle"));
    let out = command
        .arg0("anything")
        .args(["run", "--", "sh", "-c", "echo $0"])
        .env("HEDDLE_PRELOAD", build_preload().join("libheddle_preload.so"));
    assert_eq!(out.output().unwrap().stdout, b"sh\n");
}

#[test]
fn fxmark_measures_the_bypass_and_checks_that_it_served() {
    let Some(_alone) = alone() else { return };
    build_preload();
    let run = [
        "fxmark",
        "DWOM",
        "DRBL",
        "DWTL",
        "MWCL",
        "--target",
        "heddle+bypass",
        "--secs",
        "0.05",
        "--repeat",
        "1",
    ];
    let rest = ["--files", "64", "--file-size", "1M", "--cores", "1,2", "--json", "-"];
    let said = common::heddle(&[&run[..], &rest[..]].concat()).ok();
    let report: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 8);
    assert!(
        runs.iter().all(|run| run["target"] == "heddle+bypass" && run["ops"].as_u64() > Some(0)),
        "{report}"
    );
}
