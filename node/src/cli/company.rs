//! Members beside a steward: `muster host --with-node --with-verifier` starts them as processes of their own, and ends them
//! with it. The verifier is the other program, which lies beside this one.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use muster_core::ids::RunId;
use muster_core::lock::lock;
use muster_core::messages::enrol::Role;
use muster_net::clock::now;
use muster_organise::invite::{InviteOptions, invite, read_manifest};
use muster_organise::organiser_key;
use muster_replica::StopRequests;
use muster_replica::exit::{Exit, Failure, Outcome};
use muster_replica::invitation;
use muster_show::progress::at_end;
use muster_store::home::Home;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// How often they are looked at.
const LOOK: Duration = Duration::from_millis(100);
/// How long they may take to end by themselves once the steward has ended, and once they were asked to.
const LAST: Duration = Duration::from_secs(30);
const ASKED: Duration = Duration::from_secs(5);
/// How long an invitation holds that is used at once.
const VALID: u64 = 3600;
/// What is left of it at least for a member that comes.
const SOON: u64 = 60;
/// Bytes of a log in which its last line is looked for.
const TAIL: u64 = 4096;
/// Where a member keeps the line that it was invited by.
const INVITATION: &str = "invitation";
/// A verifier's directory that has this was admitted.
const ADMITTED: &str = "ticket";

/// Who else is to run on this machine.
pub(super) struct Company {
    folder: PathBuf,
    roles: Vec<(Role, PathBuf)>,
    verifier: PathBuf,
    /// How they compute, as words of a command line.
    compute: Vec<String>,
}

/// The members while they run.
pub(super) struct Running {
    over: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// A process of a member, and what comes after it.
struct Member {
    name: &'static str,
    log: PathBuf,
    child: Child,
    next: Option<Command>,
    ended: bool,
}

impl Company {
    /// So many nodes and perhaps a verifier beside the steward of a folder.
    ///
    /// # Errors
    /// [`Failure`]: the folder is no run, or lacks the organiser's key; the verifier's program is not there.
    pub(super) fn new(folder: &Path, nodes: u16, verifier: bool, compute: Vec<String>) -> Outcome<Self> {
        let folder = fs::canonicalize(folder).map_err(|error| {
            Failure::environment(format!("{}: cannot be opened ({error})", folder.display()))
        })?;
        let begins_with = read_manifest(&folder)?.admission.start_nodes;
        if (1..begins_with).contains(&nodes) {
            tracing::warn!(
                "the run begins with {begins_with} nodes, and here {} on this machine: invite others, or start as many here \
                 (--with-node={begins_with})",
                if nodes == 1 { "is one".to_owned() } else { format!("are {nodes}") }
            );
        }
        if !organiser_key(&folder, None).exists() {
            return Err(Failure::usage(format!(
                "{}: the organiser's key is elsewhere, and members beside the steward need an invitation: leave --with-node and \
                 --with-verifier out, and invite them with --organiser-key",
                folder.display()
            )));
        }
        let beside = |word: String| folder.with_file_name(format!("{}-{word}", file_name(&folder)));
        let mut roles: Vec<(Role, PathBuf)> = (1..=nodes)
            .map(|number| {
                (Role::Node, beside(if number == 1 { "node".into() } else { format!("node-{number}") }))
            })
            .collect();
        roles.extend(verifier.then(|| (Role::Verifier, beside("verifier".into()))));
        let program = if verifier { verifiers_program()? } else { PathBuf::new() };
        Ok(Self { folder, roles, verifier: program, compute })
    }

    /// Starts them, once the steward listens; within a runtime. The run goes on without one that cannot be started.
    pub(super) fn start(&self) -> Running {
        let mut members = Vec::new();
        for (role, home) in &self.roles {
            match self.member(*role, home) {
                Ok(member) => {
                    tracing::info!(
                        "a {} begins on this machine; its log: {}",
                        member.name,
                        member.log.display()
                    );
                    members.push(member);
                }
                Err(failure) => tracing::warn!("no {} begins on this machine: {failure}", role.word()),
            }
        }
        let members = Arc::new(Mutex::new(members));
        let left = members.clone();
        at_end(move || lock(&left).iter_mut().for_each(Member::kill));
        let (over, ended) = oneshot::channel();
        Running { over, task: tokio::spawn(keep(members, ended)) }
    }

    fn member(&self, role: Role, home: &Path) -> Outcome<Member> {
        let line = self.invitation(role, home)?;
        let own = std::env::current_exe();
        let own =
            own.map_err(|error| Failure::environment(format!("this program cannot be found ({error})")))?;
        let log = home.with_file_name(format!("{}.log", file_name(home)));
        let command = |program: &Path, words: &[&str]| -> Outcome<Command> {
            let failed = |error: io::Error| {
                Failure::environment(format!("{}: cannot be written ({error})", log.display()))
            };
            let out = File::options().append(true).create(true).open(&log).map_err(failed)?;
            let mut command = Command::new(program);
            command.args(words).stdin(Stdio::null()).stdout(out.try_clone().map_err(failed)?).stderr(out);
            // Ctrl-C is for the steward, which tells them.
            #[cfg(unix)]
            std::os::unix::process::CommandExt::process_group(&mut command, 0);
            Ok(command)
        };
        let (line, at) = (format!("@{}", line.display()), home.to_string_lossy());
        let (mut first, next) = match role {
            Role::Node => {
                let mut join = command(&own, &["join", &line, "--data-dir", &at])?;
                join.args(&self.compute);
                (join, None)
            }
            Role::Verifier => {
                let mut watch = command(&self.verifier, &["watch", &at])?;
                watch.args(&self.compute);
                if home.join(ADMITTED).exists() {
                    (watch, None)
                } else {
                    (command(&self.verifier, &["enroll", &line, "--data-dir", &at])?, Some(watch))
                }
            }
        };
        Ok(Member { name: role.word(), log, child: spawn(&mut first)?, next, ended: false })
    }

    /// The file with the line that a member came by, or comes by now.
    fn invitation(&self, role: Role, home: &Path) -> Outcome<PathBuf> {
        let path = home.join(INVITATION);
        let manifest = read_manifest(&self.folder)?;
        // A member that was admitted comes by any line; for one that never was, its own may have expired.
        if !still_good(&path, manifest.run(), now()) {
            let probation = manifest.admission.probation > 0;
            let ticket = invite(&InviteOptions {
                folder: self.folder.clone(),
                role: Some(role),
                founder: role == Role::Node && probation,
                uses: 1,
                valid_for: VALID,
                addresses: Vec::new(),
                organiser_key: None,
            })?;
            Home::open(home)?.write_secret(INVITATION, ticket.to_line().as_bytes())?;
        }
        Ok(path)
    }
}

impl Running {
    /// The steward has ended: waits until they have as well.
    pub(super) async fn part(self) {
        let _ = self.over.send(());
        let _ = self.task.await;
    }
}

/// Looks after members until the steward has ended, and they have.
async fn keep(members: Arc<Mutex<Vec<Member>>>, mut over: oneshot::Receiver<()>) {
    let mut stops = StopRequests::listen();
    let mut asked = false;
    loop {
        tokio::select! {
            // They finish the round as the steward does.
            () = stops.next() => {
                asked = true;
                lock(&members).iter().for_each(Member::ask);
            }
            _ = &mut over => break,
            () = sleep(LOOK) => lock(&members).iter_mut().for_each(Member::look),
        }
    }
    // Of a run that is over they have only to hear; where the steward was stopped they wait for it in vain.
    let last = if asked { ASKED } else { LAST };
    for patience in [last, ASKED] {
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline && !lock(&members).iter().all(|member| member.ended) {
            sleep(LOOK).await;
            lock(&members).iter_mut().for_each(Member::look);
        }
        lock(&members).iter().for_each(Member::ask);
    }
    lock(&members).iter_mut().for_each(Member::kill);
}

impl Member {
    /// Starts what comes next, or says how it ended.
    fn look(&mut self) {
        match self.child.try_wait() {
            Ok(Some(status)) if !self.ended => self.follow(status),
            _ => {}
        }
    }

    fn follow(&mut self, status: ExitStatus) {
        let next = self.next.take().filter(|_| status.success());
        match next.map(|mut next| spawn(&mut next)) {
            Some(Ok(child)) => self.child = child,
            Some(Err(failure)) => self.end(&format!("cannot go on: {failure}")),
            None => self.end(&how(status)),
        }
    }

    fn end(&mut self, how: &str) {
        self.ended = true;
        let (name, log) = (self.name, self.log.display());
        let said = tail(&self.log).unwrap_or_default();
        let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
        tracing::info!("the {name} on this machine {how}; it said last: {last} ({log})");
    }

    /// Asks it to stop, as Ctrl-C does: the first time it finishes the round, the second time it ends at once.
    fn ask(&self) {
        #[cfg(unix)]
        if !self.ended {
            use rustix::process::{Pid, Signal, kill_process};
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        }
    }

    fn kill(&mut self) {
        if !self.ended {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Whether a file holds a line by which a member may still come.
fn still_good(path: &Path, run: RunId, now: u64) -> bool {
    let ticket = invitation(&format!("@{}", path.display()));
    let pass = ticket.ok().and_then(|ticket| ticket.pass);
    let invited = pass.and_then(|pass| pass.invitation.verify(run).ok());
    invited.is_some_and(|invited| invited.expires > now.saturating_add(SOON))
}

fn spawn(command: &mut Command) -> Outcome<Child> {
    let program = PathBuf::from(command.get_program());
    command
        .spawn()
        .map_err(|error| Failure::environment(format!("{}: cannot be started ({error})", program.display())))
}

fn how(status: ExitStatus) -> String {
    match status.code() {
        Some(0) => "has ended".into(),
        Some(code) if code == i32::from(Exit::Interrupted.code()) => "has stopped".into(),
        Some(code) => format!("has ended with exit code {code}"),
        None => "was killed".into(),
    }
}

/// The end of a log.
fn tail(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
    let mut bytes = Vec::new();
    file.take(TAIL).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(|| "run".into(), |name| name.to_string_lossy().into_owned())
}

/// The verifier's program: beside this one, by the same name with `-verifier` behind it.
fn verifiers_program() -> Outcome<PathBuf> {
    let own = std::env::current_exe();
    let own = own.map_err(|error| Failure::environment(format!("this program cannot be found ({error})")))?;
    let stem = own.file_stem().map_or_else(|| "muster".into(), |stem| stem.to_string_lossy().into_owned());
    // Where libtorch computes, this program has become the one that has it; so will the other one.
    let stem = stem.strip_suffix("-torch").unwrap_or(&stem);
    let path = own.with_file_name(format!("{stem}-verifier{}", std::env::consts::EXE_SUFFIX));
    if path.is_file() {
        return Ok(path);
    }
    Err(Failure::environment(format!(
        "{}: is not there, and --with-verifier starts it; build both programs (cargo build --release), or leave it out",
        path.display()
    )))
}

#[cfg(test)]
mod tests {
    use muster_core::ids::Digest;
    use muster_core::messages::enrol::{Addresses, Ticket};
    use muster_core::sign::Identity;

    use super::*;

    #[test]
    fn a_line_that_has_expired_is_not_used_again() {
        let directory = tempfile::tempdir().unwrap();
        let (path, organiser) = (directory.path().join(INVITATION), Identity::from_secret(&[1; 32]));
        let run = RunId(Digest([7; 32]));
        let options = InviteOptions {
            folder: PathBuf::new(),
            role: Some(Role::Node),
            founder: false,
            uses: 1,
            valid_for: VALID,
            addresses: Vec::new(),
            organiser_key: None,
        };
        let (steward, addresses) = (organiser.id(), Addresses::default());
        let pass = Some(options.sign(&organiser, run, Role::Node).unwrap());
        let ticket = Ticket { run, steward, addresses, pass };
        assert!(!still_good(&path, run, now()), "there is none");
        fs::write(&path, ticket.to_line().as_bytes()).unwrap();
        assert!(still_good(&path, run, now()));
        assert!(!still_good(&path, run, now() + VALID), "it has expired");
        assert!(!still_good(&path, RunId(Digest([8; 32])), now()), "of another run");
    }

    #[test]
    fn members_live_beside_the_folder_of_their_run() {
        let directory = tempfile::tempdir().unwrap();
        let missing = Company::new(&directory.path().join("none"), 1, false, Vec::new()).err().unwrap();
        assert!(missing.exit == Exit::Environment && missing.message.contains("none"), "{missing}");
        let empty = Company::new(directory.path(), 1, false, Vec::new()).err().unwrap();
        assert!(empty.message.contains("manifest"), "{empty}");
        // The programs of tests have another name, beside which there is no verifier.
        let program = verifiers_program().unwrap_err();
        assert!(
            program.message.contains("-verifier") && program.message.contains("cargo build"),
            "{program}"
        );
    }
}
