//! PostgreSQL with pgbench: transfers between accounts, the server killed in the middle, started again; nothing that was acknowledged is
//! missing, and the books balance.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::test_dir::{TestDir, run_for_output, same};
use super::{App, Figure, Length, figure};
use crate::process;

pub const APP: App = App {
    name: "postgres",
    packages: &[("postgresql", "psql")],
    about: "pgbench, 4 clients; killed in the middle, recovered; sums agree, indexes hold, page checksums are right",
    group: Some("postgres"),
    run,
};

const LIMIT: Duration = Duration::from_secs(300);
const USER: &str = "postgres";
const CLIENTS: &str = "4";

struct Server<'p> {
    test_dir: &'p TestDir,
    bin: PathBuf,
    sockets: PathBuf,
}

fn run(test_dir: &TestDir, length: Length) -> Result<Vec<Figure>> {
    let sockets = test_dir.path_outside("sockets");
    fs::create_dir(&sockets)?;
    // The server does not run as root: it may enter the place, and owns its own.
    for dir in [&sockets, &test_dir.dir] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o777))?;
    }
    let server = Server { test_dir, bin: newest_bin()?, sockets };
    let made = [
        "-D",
        "data",
        "--data-checksums",
        "--no-locale",
        "--encoding=UTF8",
        "--auth=trust",
        "--no-instructions",
    ];
    run_for_output(server.tool("initdb").args(made), LIMIT)?;
    server.start()?;
    server.psql("CREATE EXTENSION amcheck")?;
    run_for_output(server.client("pgbench").args(["-i", "-q", "-s", length.pick("1", "10")]), LIMIT)?;
    let seconds = length.pick("2", "10");
    let bench = ["-c", CLIENTS, "-j", "2", "-n", "-T"];
    let out = run_for_output(server.client("pgbench").args(bench).arg(seconds), LIMIT)?;
    let tps = number_after(&out, "tps = ").with_context(|| format!("pgbench said: {out}"))?;
    let done =
        number_after(&out, "number of transactions actually processed: ").context("pgbench's count")?;
    server.check(done as u64)?;
    server.crash_and_recover(done as u64, bench)?;
    server.stop()?;
    // Every page against its checksum, without the bypass.
    run_for_output(server.plain_tool("pg_checksums").args(["--check", "-D", "data"]), LIMIT)?;
    Ok(vec![figure("pgbench, 4 clients", "transactions/s", tps)])
}

impl Server<'_> {
    fn as_user(&self, command: &Command) -> Command {
        // What the place's command is, as the server's user.
        let mut user = self.test_dir.command_without_bypass("setpriv");
        user.args(["--reuid", USER, "--regid", USER, "--init-groups", "--"])
            .arg(command.get_program())
            .args(command.get_args());
        for (name, value) in command.get_envs() {
            user.env(name, value.unwrap_or_default());
        }
        user.env("PGHOST", &self.sockets).env("PGDATABASE", "postgres");
        user
    }

    fn tool(&self, name: &str) -> Command {
        self.as_user(&self.test_dir.command_as_placed(self.bin.join(name)))
    }

    fn plain_tool(&self, name: &str) -> Command {
        self.as_user(&self.test_dir.command_without_bypass(self.bin.join(name)))
    }

    /// A program that does not touch the files itself.
    fn client(&self, name: &str) -> Command {
        self.plain_tool(name)
    }

    fn start(&self) -> Result<()> {
        let options = format!(
            "-c listen_addresses= -c unix_socket_directories={} -c shared_buffers=32MB",
            self.sockets.display()
        );
        let log = self.sockets.join("log");
        let mut start = self.tool("pg_ctl");
        start.args(["-D", "data", "-w", "-t", "120", "-o", &options, "-l"]).arg(&log).arg("start");
        // The server keeps what it inherits open: no pipe of ours.
        start.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        let started = process::status(&mut start, LIMIT)?;
        if !started.success() {
            bail!("the server does not start: {}", fs::read_to_string(&log).unwrap_or_default());
        }
        Ok(())
    }

    fn stop(&self) -> Result<()> {
        run_for_output(self.tool("pg_ctl").args(["-D", "data", "-w", "-m", "fast", "stop"]), LIMIT).map(drop)
    }

    fn psql(&self, statement: &str) -> Result<String> {
        run_for_output(
            self.client("psql").args(["-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", statement]),
            LIMIT,
        )
    }

    /// The books balance; as many transfers are there as were acknowledged, or more.
    fn check(&self, acknowledged: u64) -> Result<()> {
        let sums = "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT coalesce(sum(delta), 0) FROM pgbench_history) \
            AND (SELECT sum(bbalance) FROM pgbench_branches) = (SELECT coalesce(sum(delta), 0) FROM pgbench_history) \
            AND (SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT coalesce(sum(delta), 0) FROM pgbench_history)";
        same("the books balance", self.psql(sums)?.as_str(), "t\n")?;
        let found: u64 = self.psql("SELECT count(*) FROM pgbench_history")?.trim().parse()?;
        ensure!(found >= acknowledged, "{acknowledged} transfers were acknowledged, {found} are there");
        let indexes = "SELECT count(bt_index_check(c.oid, true)) FROM pg_class c JOIN pg_index i ON c.oid = i.indexrelid \
            JOIN pg_am a ON a.oid = c.relam WHERE a.amname = 'btree' AND c.relpersistence = 'p'";
        let checked: u64 = self.psql(indexes)?.trim().parse()?;
        ensure!(checked > 50, "only {checked} indexes were checked");
        Ok(())
    }

    /// All of the server's processes are killed while clients work; what they were told is there afterwards.
    fn crash_and_recover(&self, before: u64, bench: [&str; 6]) -> Result<()> {
        let logs = self.sockets.join("transfers");
        let mut clients = self.client("pgbench");
        clients.args(bench).args(["20", "-l", "--log-prefix"]).arg(&logs);
        let (out, err) = (std::process::Stdio::null(), std::process::Stdio::null());
        let mut clients = clients.stdout(out).stderr(err).spawn().context("cannot start pgbench")?;
        std::thread::sleep(Duration::from_secs(2));
        let pid = fs::read_to_string(self.test_dir.dir.join("data/postmaster.pid"))?;
        let pid: u32 = pid.lines().next().context("the server's number")?.parse()?;
        let mut victims = vec![pid.to_string()];
        victims.extend(process::descendants(pid).iter().map(u32::to_string));
        // Children end by themselves meanwhile, which kill reports as a failure of no interest here.
        Command::new("kill").arg("-KILL").args(&victims).stderr(std::process::Stdio::null()).status()?;
        clients.wait()?;
        let mut acknowledged = before;
        for entry in fs::read_dir(&self.sockets)? {
            let path = entry?.path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("transfers")) {
                // A line a transfer; the last one may be torn off.
                acknowledged += fs::read_to_string(path)?.lines().count().saturating_sub(1) as u64;
            }
        }
        ensure!(acknowledged > before, "nothing was done before the kill");
        fs::remove_file(self.test_dir.dir.join("data/postmaster.pid"))?;
        self.start().context("after the kill")?;
        self.check(acknowledged).context("after the kill")
    }
}

/// Debian keeps the tools of each version apart.
fn newest_bin() -> Result<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").context("PostgreSQL is not installed")?;
    let mut bins: Vec<PathBuf> = versions
        .flatten()
        .map(|entry| entry.path().join("bin"))
        .filter(|bin| bin.join("pgbench").is_file())
        .collect();
    bins.sort();
    bins.pop().context("no version of PostgreSQL with pgbench in /usr/lib/postgresql")
}

fn number_after(text: &str, mark: &str) -> Option<f64> {
    let rest = text.split(mark).nth(1)?;
    rest.split(|c: char| !c.is_ascii_digit() && c != '.').next()?.parse().ok()
}
