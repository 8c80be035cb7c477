//! Runs as real processes: they are killed when dropped, and their logs are shown when a test fails.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::settings::Settings;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(180);
/// Pause between two looks at a log or a process.
const LOOK: Duration = Duration::from_millis(20);

/// Process tests take turns: the machine has few cores. Of these two places most tests take both, and those that wait most
/// of the time for timers one.
static PLACES: (Mutex<usize>, Condvar) = (Mutex::new(2), Condvar::new());

/// Places that a run has taken.
struct Turn(usize);

impl Turn {
    fn take(places: usize) -> Self {
        let (free, freed) = &PLACES;
        let free = free.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free = freed.wait_while(free, |free| *free < places).unwrap_or_else(PoisonError::into_inner);
        *free -= places;
        Self(places)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let (free, freed) = &PLACES;
        *free.lock().unwrap_or_else(PoisonError::into_inner) += self.0;
        freed.notify_all();
    }
}

/// The programs under test, which only a test of this package can name.
#[macro_export]
macro_rules! programs {
    () => {
        $crate::processes::Programs {
            muster: env!("CARGO_BIN_EXE_e2e-muster"),
            verifier: env!("CARGO_BIN_EXE_e2e-muster-verifier"),
        }
    };
}

/// The programs under test.
#[derive(Clone, Copy)]
pub struct Programs {
    /// `muster`.
    pub muster: &'static str,
    /// `muster-verifier`.
    pub verifier: &'static str,
}

/// A process of a run.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Ends it as the kernel would on a power cut.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Presses Ctrl-C.
    pub fn interrupt(&self) {
        self.signal("INT");
    }

    /// Stops it where it is, connections open, until [`Self::resume`].
    pub fn suspend(&self) {
        self.signal("STOP");
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal("CONT");
    }

    /// Sends a signal of this name, like TERM.
    pub fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.id());
        let sent = Command::new("sh").args(["-c", &kill]).status().expect("a shell");
        assert!(sent.success(), "{} has ended before {kill}", self.name);
    }

    /// Waits until it has printed something.
    pub fn wait_for_log(&self, words: &str) {
        wait_for(&format!("{words:?} of {}", self.name), || self.log().contains(words));
    }

    /// Waits for its end and gives the exit code.
    pub fn wait(&mut self) -> i32 {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child of this process") {
                return status.code().unwrap_or(-1);
            }
            assert!(begun.elapsed() < PATIENCE, "{} does not end", self.name);
            std::thread::sleep(LOOK);
        }
    }

    /// Waits so long for its end; the exit code if it has ended by then.
    pub fn wait_at_most(&mut self, patience: Duration) -> Option<i32> {
        let begun = Instant::now();
        while begun.elapsed() < patience {
            if let Some(status) = self.child.try_wait().expect("a child of this process") {
                return Some(status.code().unwrap_or(-1));
            }
            std::thread::sleep(LOOK);
        }
        None
    }

    /// What it has printed.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Process {
    #[allow(clippy::print_stderr)]
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.log();
            let tail: Vec<&str> = log.lines().rev().take(25).collect();
            eprintln!("---- {}", self.name);
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
        }
    }
}

/// A run folder in a temporary directory, made by the product's own commands.
pub struct Run {
    programs: Programs,
    home: TempDir,
    _turn: Turn,
}

impl Run {
    /// Packs a text and makes a run of these settings.
    pub fn new(programs: Programs, settings: &Settings) -> Self {
        Self::packed(programs, &settings.to_string(), None)
    }

    /// The same with the text of a `run.toml`, and perhaps of a `tokenizer.json` in which `<|endoftext|>` ends a text.
    pub fn packed(programs: Programs, settings: &str, tokeniser: Option<&str>) -> Self {
        Self::routed(programs, settings, tokeniser, 1)
    }

    /// The same for so many rows of experts.
    pub fn routed(programs: Programs, settings: &str, tokeniser: Option<&str>, rows: u16) -> Self {
        Self::prepared(programs, settings, tokeniser, rows, [8_000, 2])
    }

    /// The same of a run that waits most of the time, beside another one that does.
    pub fn waiting(programs: Programs, settings: &str, rows: u16) -> Self {
        Self::prepared(programs, settings, None, rows, [8_000, 1])
    }

    /// The same of a run that is timed. It is short, and every state is measured; what is held out is so little that this takes no
    /// time, as it takes hardly any of the rounds of a long run.
    pub fn timed(programs: Programs, settings: &str) -> Self {
        Self::prepared(programs, settings, None, 1, [400, 2])
    }

    fn prepared(
        programs: Programs,
        settings: &str,
        tokeniser: Option<&str>,
        rows: u16,
        [held_out, turns]: [usize; 2],
    ) -> Self {
        let home = tempfile::tempdir().expect("a temporary directory");
        let run = Self { programs, home, _turn: Turn::take(turns) };
        fs::create_dir(run.path("text")).expect("a folder");
        fs::write(run.path("text/a.txt"), text(1, 40_000)).expect("a file");
        fs::write(run.path("text/b.txt"), text(2, held_out)).expect("a file");
        fs::write(run.path("run.toml"), settings).expect("a file");
        let (text, corpus, file) = (run.at("text"), run.at("corpus"), run.at("tokenizer.json"));
        let mut pack = vec!["data", "pack", "--text", &text, "--out", &corpus];
        if let Some(tokeniser) = tokeniser {
            fs::write(&file, tokeniser).expect("a file");
            pack.extend(["--tokenizer", &file, "--end", "<|endoftext|>"]);
        }
        let count = rows.to_string();
        if rows > 1 {
            pack.extend(["--rows", &count]);
        }
        run.good(&pack);
        run.good(&[
            "run",
            "new",
            "--config",
            &run.at("run.toml"),
            "--data",
            &run.at("corpus"),
            "--out",
            &run.at("run"),
        ]);
        run
    }

    /// A path within the temporary directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// A path within the temporary directory, as an argument.
    pub fn at(&self, name: &str) -> String {
        self.path(name).to_string_lossy().into_owned()
    }

    /// Runs `muster` to its end: exit code and what it printed on both outputs.
    pub fn muster(&self, arguments: &[&str]) -> (i32, String) {
        self.finish(self.programs.muster, arguments)
    }

    /// Runs `muster-verifier` to its end.
    pub fn verifier(&self, arguments: &[&str]) -> (i32, String) {
        self.finish(self.programs.verifier, arguments)
    }

    fn finish(&self, program: &str, arguments: &[&str]) -> (i32, String) {
        let mut command = Command::new(program);
        // What a process keeps for its user stays in this directory.
        command.args(arguments).env("XDG_STATE_HOME", self.path("state")).stdin(Stdio::null());
        command.env("MUSTER_BUGS", "panic");
        let output = command.output().expect("a program");
        let text = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned())
    }

    /// Runs `muster`, which must succeed, and gives its output.
    pub fn good(&self, arguments: &[&str]) -> String {
        let (code, output) = self.muster(arguments);
        assert_eq!(code, 0, "muster {arguments:?}: {output}");
        output
    }

    /// Starts the steward and waits until it can be dialled.
    pub fn host(&self) -> Process {
        self.host_with(&[])
    }

    /// The same with more arguments.
    pub fn host_with(&self, more: &[&str]) -> Process {
        let folder = self.at("run");
        let arguments = [&["host", &folder, "--exit-when-done", "--listen", "127.0.0.1:0"], more].concat();
        let steward = self.spawn("steward", self.programs.muster, &arguments);
        wait_for("the steward to listen", || self.path("run/address").exists());
        steward
    }

    /// The same without arguments: it listens on every address.
    pub fn host_everywhere(&self) -> Process {
        let steward =
            self.spawn("steward", self.programs.muster, &["host", &self.at("run"), "--exit-when-done"]);
        wait_for("the steward to listen", || self.path("run/address").exists());
        steward
    }

    /// Starts a steward whose folder is cramped.
    pub fn host_cramped(&self, cramped: &Cramped) -> Process {
        let arguments = ["host", &self.at("run"), "--exit-when-done", "--listen", "127.0.0.1:0"];
        self.launch("steward", cramped.command(self.programs.muster), &arguments)
    }

    /// Starts a node within a cramped directory.
    pub fn join_cramped(&self, name: &str, invitation: &str, cramped: &Cramped) -> Process {
        let directory = cramped.path.join("home").to_string_lossy().into_owned();
        let arguments = ["join", invitation, "--data-dir", &directory, "--listen", "127.0.0.1:0"];
        self.launch(name, cramped.command(self.programs.muster), &arguments)
    }

    /// An invitation line.
    pub fn invite(&self, role: &str, uses: u32) -> String {
        let (code, line) = {
            let output = Command::new(self.programs.muster)
                .args(["invite", &self.at("run"), "--role", role, "--uses", &uses.to_string()])
                .output()
                .expect("a program");
            (output.status.code(), String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        assert_eq!(code, Some(0), "{line}");
        line
    }

    /// Starts a node with a data directory of this name.
    pub fn join(&self, name: &str, invitation: &str, more: &[&str]) -> Process {
        let directory = self.at(name);
        let mut arguments = vec!["join", invitation, "--data-dir", &directory, "--listen", "127.0.0.1:0"];
        arguments.extend(more);
        self.spawn(name, self.programs.muster, &arguments)
    }

    /// Starts a node that listens here, and tells others to dial it there.
    pub fn join_behind(&self, name: &str, invitation: &str, listen: &str, advertise: &str) -> Process {
        let directory = self.at(name);
        let addresses = ["--listen", listen, "--advertise", advertise];
        let arguments = [&["join", invitation, "--data-dir", &directory][..], &addresses].concat();
        self.spawn(name, self.programs.muster, &arguments)
    }

    /// Starts a node that nobody can dial.
    pub fn join_undialled(&self, name: &str, invitation: &str) -> Process {
        let directory = self.at(name);
        let arguments = ["join", invitation, "--data-dir", &directory, "--no-listen"];
        self.spawn(name, self.programs.muster, &arguments)
    }

    /// Starts an attacker of the rehearsal.
    pub fn attack(&self, name: &str, attack: &str, from: u32, invitation: &str) -> Process {
        self.attack_with(name, (attack, from), invitation, &[])
    }

    /// The same with more arguments.
    pub fn attack_with(
        &self,
        name: &str,
        (attack, from): (&str, u32),
        invitation: &str,
        more: &[&str],
    ) -> Process {
        let (from, directory) = (from.to_string(), self.at(name));
        let words = ["demo-role", "attacker", attack, &from, invitation, &directory];
        self.spawn(name, self.programs.muster, &[&words, more].concat())
    }

    /// Enrols a verifier and starts its watch.
    pub fn watch(&self, name: &str, invitation: &str) -> Process {
        self.watch_with(name, invitation, &[])
    }

    /// The same with more arguments.
    pub fn watch_with(&self, name: &str, invitation: &str, more: &[&str]) -> Process {
        let directory = self.at(name);
        let (code, output) = self.verifier(&["enroll", invitation, "--data-dir", &directory]);
        assert_eq!(code, 0, "{output}");
        self.spawn(name, self.programs.verifier, &[&["watch", &directory], more].concat())
    }

    /// Starts the watch of a verifier that is enrolled already.
    pub fn watch_again(&self, name: &str) -> Process {
        self.spawn(name, self.programs.verifier, &["watch", &self.at(name)])
    }

    /// Starts a verifier of the rehearsal that lies.
    pub fn lie(&self, name: &str, lie: &str, invitation: &str) -> Process {
        self.spawn(name, self.programs.muster, &["demo-role", "liar", lie, invitation, &self.at(name)])
    }

    /// Starts to observe a run: of an invitation, or `RUN@STEWARD@HOST:PORT`.
    pub fn observe(&self, name: &str, target: &str) -> Process {
        self.observe_with(name, target, &[])
    }

    /// The same with more arguments.
    pub fn observe_with(&self, name: &str, target: &str, more: &[&str]) -> Process {
        let directory = self.at(name);
        self.spawn(
            name,
            self.programs.verifier,
            &[&["observe", target, "--data-dir", &directory], more].concat(),
        )
    }

    /// Starts a program in a network namespace, with its output in a log.
    pub fn spawn_in(&self, namespace: &str, name: &str, program: &str, arguments: &[&str]) -> Process {
        let mut within = Command::new("ip");
        within.args(["netns", "exec", namespace, program]);
        self.launch(name, within, arguments)
    }

    /// Starts a program with its output in a log.
    pub fn spawn(&self, name: &str, program: &str, arguments: &[&str]) -> Process {
        self.launch(name, Command::new(program), arguments)
    }

    fn launch(&self, name: &str, mut program: Command, arguments: &[&str]) -> Process {
        let log = self.path(&format!("{name}.log"));
        let file = File::options().append(true).create(true).open(&log).expect("a log");
        let child = program
            .args(arguments)
            .env("XDG_STATE_HOME", self.path("state"))
            .env("MUSTER_BUGS", "panic")
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("a log"))
            .stderr(file)
            .spawn()
            .expect("a program");
        Process { name: name.to_owned(), child, log }
    }

    /// Events of the steward's log of one kind.
    pub fn events(&self, kind: &str) -> Vec<serde_json::Value> {
        let text = fs::read_to_string(self.path("run/log.jsonl")).unwrap_or_default();
        let events = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        events.filter(|event| event["event"] == kind).collect()
    }

    /// Waits until this round's outcome is sealed.
    pub fn wait_round(&self, round: u64) {
        wait_for(&format!("round {round}"), || {
            self.events("round").iter().any(|event| event["round"].as_u64() >= Some(round))
        });
    }

    /// A member's `result.json`.
    pub fn result(&self, name: &str) -> serde_json::Value {
        let text =
            fs::read_to_string(self.path(name).join("result.json")).expect("a finished member's result");
        serde_json::from_str(&text).expect("JSON")
    }

    /// The last sealed root.
    pub fn root(&self) -> String {
        self.events("close").last().expect("a closed run")["root"].as_str().expect("text").to_owned()
    }

    /// What must hold at the end of every run without cheats.
    pub fn check_end(&self, members: &[&str]) {
        let root = self.root();
        for member in members {
            assert_eq!(self.result(member)["final_state_root"], root.as_str(), "{member}");
        }
        assert!(self.events("ban").is_empty());
        let (code, output) = self.replay();
        assert_eq!(code, 0, "{output}");
        assert!(output.contains(&root) || output.contains(&root[..16]), "{output}");
    }

    /// Checks each bundle of a folder where nothing else is, and gives how many there are: all are of who is guilty.
    pub fn check_bundles(&self, folder: &str) -> usize {
        let bundles = kept(&self.path(folder), "bundle").into_iter();
        let alone = tempfile::tempdir().expect("a folder");
        bundles
            .map(|path| {
                let copy = alone.path().join("downloaded");
                fs::copy(&path, &copy).expect("a copy");
                let (code, output) = self.verifier(&["check", &copy.to_string_lossy()]);
                assert!(code == 0 && output.contains("guilty: "), "{}: {output}", path.display());
                assert!(output.contains("compare both with your invitation"), "{output}");
            })
            .count()
    }

    /// Replays the archive: exit code and output. A report of a good one is as the spec says.
    pub fn replay(&self) -> (i32, String) {
        let done = self.verifier(&["replay", &self.at("run"), "--report", &self.at("replayed")]);
        if done.0 == 0 {
            let report = fs::read_to_string(self.path("replayed/report.json")).expect("a report");
            crate::schema::check("replay", &serde_json::from_str(&report).expect("JSON"));
        }
        done
    }
}

/// Waits for a condition.
pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(LOOK);
    }
}

/// Words of a small grammar, so that there is something to learn.
fn text(seed: u64, bytes: usize) -> String {
    let words = [
        "let ", "mut ", "state", " = ", "round", "(", ")", ";\n", "if ", "else ", "{\n", "}\n", "leaf",
        ".sum", "42",
    ];
    let mut state = seed;
    let mut text = String::new();
    while text.len() < bytes {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.push_str(words[(state >> 33) as usize % words.len()]);
    }
    text
}

/// Copies a folder, so that a test may damage the copy.
pub fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let path = entry.expect("an entry").path();
        let target = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            copy_folder(&path, &target);
        } else {
            fs::copy(&path, &target).expect("a copy");
        }
    }
}

/// A directory that cannot grow as it should: a small file system of its own where this process may mount one, else a
/// limit on the size of each file.
pub struct Cramped {
    path: PathBuf,
    mounted: bool,
    kibibytes: u32,
}

impl Cramped {
    /// Makes the directory. `mount` is whether a file system is tried at all.
    pub fn new(path: PathBuf, kibibytes: u32, mount: bool) -> Self {
        fs::create_dir(&path).expect("a new directory");
        let mounted = mount && Self::mount(&path, &format!("size={kibibytes}k"));
        Self { path, mounted, kibibytes }
    }

    /// Whether it is a file system of its own.
    pub fn is_mounted(&self) -> bool {
        self.mounted
    }

    fn mount(path: &Path, options: &str) -> bool {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "muster-test"]).arg(path);
        mount.output().is_ok_and(|done| done.status.success())
    }

    /// The command that runs a program under the limit.
    fn command(&self, program: &str) -> Command {
        if self.mounted {
            return Command::new(program);
        }
        let mut shell = Command::new("sh");
        // In blocks of 512 bytes.
        let limited = format!("ulimit -f {}; exec \"$0\" \"$@\"", self.kibibytes * 2);
        shell.args(["-c", &limited, program]);
        shell
    }

    /// Makes room, for the processes that are started from now on.
    pub fn widen(&mut self) {
        self.kibibytes = 1 << 20;
        if self.mounted {
            assert!(Self::mount(&self.path, "remount,size=1g"), "room can be made");
        }
    }
}

impl Drop for Cramped {
    fn drop(&mut self) {
        if self.mounted {
            let _ = Command::new("umount").arg("--lazy").arg(&self.path).output();
        }
    }
}

/// Pieces of evidence that a directory keeps, in order. Bundles of them lie beside.
pub fn evidence_in(directory: &Path) -> Vec<PathBuf> {
    kept(directory, "evidence")
}

/// Files of its evidence with this ending.
fn kept(directory: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory.join("evidence")).expect("a folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut found: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|found| found == ending)).collect();
    found.sort();
    found
}
