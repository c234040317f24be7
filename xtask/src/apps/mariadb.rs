//! MariaDB with sysbench: tables in one shared tablespace, which several threads write at once; the server killed in the middle, started
//! again; every table and index is checked, the books balance.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::test_dir::{TestDir, run_for_output, same};
use super::{App, Figure, Length, figure};

pub const APP: App = App {
    name: "mariadb",
    packages: &[("mariadb-server", "mariadbd"), ("mariadb-client", "mariadb"), ("sysbench", "sysbench")],
    about: "sysbench oltp_read_write, 4 threads, one shared tablespace; killed in the middle, recovered; tables and sums are right",
    group: None,
    run,
};

const LIMIT: Duration = Duration::from_secs(300);
const TABLES: &str = "4";

fn run(test_dir: &TestDir, length: Length) -> Result<Vec<Figure>> {
    let socket = test_dir.path_outside("mysql.sock");
    let mut install = test_dir.command_as_placed("mariadb-install-db");
    install.args([
        "--no-defaults",
        "--user=root",
        "--auth-root-authentication-method=normal",
        "--skip-test-db",
        "--innodb-use-native-aio=0",
    ]);
    run_for_output(install.arg(format!("--datadir={}", test_dir.dir.join("data").display())), LIMIT)?;
    let mut server = Server::start(test_dir, &socket)?;
    server.sql("CREATE DATABASE sbtest; CREATE DATABASE books")?;
    server.sql(
        "USE books; CREATE TABLE account(id INT PRIMARY KEY, amount BIGINT) ENGINE=InnoDB; \
         INSERT INTO account SELECT seq, 1000 FROM seq_1_to_100",
    )?;
    let rows = length.pick("2000", "20000");
    run_for_output(
        server.sysbench("2").args(["--threads=2", &format!("--table-size={rows}"), "prepare"]),
        LIMIT,
    )?;
    let size = format!("--table-size={rows}");
    let timed =
        run_for_output(server.sysbench(length.pick("2", "10")).args(["--threads=4", &size, "run"]), LIMIT)?;
    let tps = timed
        .split("transactions:")
        .nth(1)
        .and_then(|rest| rest.split('(').nth(1)?.split_whitespace().next()?.parse().ok());
    let tps: f64 = tps.with_context(|| format!("sysbench said: {timed}"))?;
    // Killed while it works; what every client was told is there afterwards.
    let mut load = server.sysbench("20");
    let mut load = load
        .args(["--threads=4", &size, "run"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("sysbench")?;
    let moved = server.move_amounts(length.pick(50, 300))?;
    server.kill()?;
    load.wait()?;
    server = Server::start(test_dir, &socket).context("after the kill")?;
    server.check(moved)?;
    server.stop()?;
    // Once more without the bypass.
    let plain = Server::start_as(test_dir.command_without_bypass("mariadbd"), test_dir, &socket)
        .context("without the bypass")?;
    plain.check(moved)?;
    plain.stop()?;
    Ok(vec![figure("oltp_read_write, 4 threads", "transactions/s", tps)])
}

struct Server<'p> {
    test_dir: &'p TestDir,
    socket: PathBuf,
    process: Child,
}

impl<'p> Server<'p> {
    fn start(test_dir: &'p TestDir, socket: &std::path::Path) -> Result<Server<'p>> {
        Server::start_as(test_dir.command_as_placed("mariadbd"), test_dir, socket)
    }

    fn start_as(mut command: Command, test_dir: &'p TestDir, socket: &std::path::Path) -> Result<Server<'p>> {
        command.args([
            "--no-defaults",
            "--user=root",
            "--skip-networking",
            "--skip-grant-tables",
            "--innodb-use-native-aio=0",
        ]);
        command.args([
            "--innodb-file-per-table=0",
            "--innodb-buffer-pool-size=32M",
            "--innodb-flush-log-at-trx-commit=1",
            "--innodb-checksum-algorithm=full_crc32",
        ]);
        command
            .arg(format!("--datadir={}", test_dir.dir.join("data").display()))
            .arg(format!("--socket={}", socket.display()));
        let log = test_dir.path_outside("mariadb.log");
        let said = fs::File::options().create(true).append(true).open(&log)?;
        let process =
            command.stdout(said.try_clone()?).stderr(said).spawn().context("cannot start mariadbd")?;
        let mut server = Server { test_dir, socket: socket.to_path_buf(), process };
        let began = Instant::now();
        while server.sql("SELECT 1").is_err() {
            if began.elapsed() > Duration::from_secs(60) || server.process.try_wait()?.is_some() {
                let log = fs::read_to_string(&log).unwrap_or_default();
                let lines: Vec<&str> = log.lines().collect();
                bail!("the server does not start: {}", lines[lines.len().saturating_sub(15)..].join("\n"));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(server)
    }

    fn sql(&self, statements: &str) -> Result<String> {
        let mut client = self.test_dir.command_without_bypass("mariadb");
        client
            .args(["--no-defaults", "-u", "root", "-N", "-B", "-e", statements])
            .arg(format!("--socket={}", self.socket.display()));
        run_for_output(&mut client, LIMIT)
    }

    fn sysbench(&self, seconds: &str) -> Command {
        let mut command = self.test_dir.command_without_bypass("sysbench");
        command.args([
            "oltp_read_write",
            "--db-driver=mysql",
            "--mysql-user=root",
            "--mysql-db=sbtest",
            "--rand-seed=7",
        ]);
        command.args([
            &format!("--mysql-socket={}", self.socket.display()),
            &format!("--tables={TABLES}"),
            &format!("--time={seconds}"),
        ]);
        command
    }

    /// Amounts between accounts, a transaction each; how many were acknowledged.
    fn move_amounts(&self, count: u64) -> Result<u64> {
        for n in 0..count {
            let (from, to) = (n % 100 + 1, (n * 7 + 3) % 100 + 1);
            self.sql(&format!(
                "START TRANSACTION; UPDATE books.account SET amount = amount - 1 WHERE id = {from}; \
                 UPDATE books.account SET amount = amount + 1 WHERE id = {to}; COMMIT;"
            ))?;
        }
        Ok(count)
    }

    fn check(&self, moved: u64) -> Result<()> {
        same(
            "the sum of all accounts",
            self.sql("SELECT sum(amount) FROM books.account")?.as_str(),
            "100000\n",
        )?;
        let expected: String = (1..=100)
            .map(|id| {
                let of = |matches: &dyn Fn(u64) -> bool| (0..moved).filter(|n| matches(*n)).count() as i64;
                let amount = 1000 - of(&|n| n % 100 + 1 == id) + of(&|n| (n * 7 + 3) % 100 + 1 == id);
                format!("{id}\t{amount}\n")
            })
            .collect();
        same("the accounts", self.sql("SELECT id, amount FROM books.account ORDER BY id")?, expected)?;
        let tables = (1..=4).map(|n| format!("sbtest.sbtest{n}")).collect::<Vec<_>>().join(", ");
        let checked = self.sql(&format!("CHECK TABLE books.account, {tables} EXTENDED"))?;
        let sound = checked.lines().filter(|line| line.ends_with("\tOK")).count();
        ensure!(sound == 5 && checked.lines().count() == 5, "CHECK TABLE says: {checked}");
        Ok(())
    }

    fn kill(mut self) -> Result<()> {
        // `heddle run` became the server: its number is the server's.
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    fn stop(mut self) -> Result<()> {
        self.sql("SHUTDOWN")?;
        let began = Instant::now();
        while self.process.try_wait()?.is_none() {
            ensure!(began.elapsed() < Duration::from_secs(60), "the server does not stop");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}
