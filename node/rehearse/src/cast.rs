//! Who plays in a rehearsal, each in a process of its own.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use muster_core::ids::MemberId;
use muster_core::messages::enrol::{Role, Ticket};
use muster_host::{CONNECTIONS, PAGE};
use muster_organise::invite::{InviteOptions, invite};
use muster_organise::{ADDRESSES, read_identity};
use muster_replica::exit::{Exit, Failure, Outcome};
use muster_show::Surroundings;

use super::children::Child;
use super::interrupt::{Interrupt, PAUSE};
use super::lie::Lie;
use super::rehearsal::Rehearsal;
use super::workspace::Workspace;
use crate::attack::Attack;

/// How long the steward may take to open its door; and everyone to leave, once the run is over and nothing more is
/// reported.
const PATIENCE: Duration = Duration::from_secs(60);
/// Validity of the invitations, in seconds.
const VALID: u64 = 24 * 3600;
/// Where the attackers of one machine learn of each other, beside their directories.
const COALITION: &str = "coalition";
const LOOPBACK: &str = "127.0.0.1:0";

/// What a member plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Character {
    /// An honest node, by the command that volunteers use.
    Node,
    /// A node that cheats.
    Attacker(Attack),
    /// A verifier.
    Verifier,
    /// A verifier that lies.
    Liar(Lie),
}

impl Character {
    /// Whether it does as it should.
    pub(super) fn honest(self) -> bool {
        matches!(self, Self::Node | Self::Verifier)
    }

    /// What it is to the run.
    pub(super) fn role(self) -> Role {
        match self {
            Self::Node | Self::Attacker(_) => Role::Node,
            Self::Verifier | Self::Liar(_) => Role::Verifier,
        }
    }
}

/// A member of the rehearsal.
pub(super) struct Player {
    /// What people call it.
    pub(super) name: String,
    /// What it plays.
    pub(super) character: Character,
    /// Its data directory.
    pub(super) home: PathBuf,
}

impl Player {
    /// Its id, once it has made its keys.
    pub(super) fn id(&self) -> Option<MemberId> {
        read_identity(&self.home, "identity").ok().map(|identity| identity.id())
    }
}

/// The steward and the members, with their processes.
pub(super) struct Cast {
    /// The members.
    pub(super) players: Vec<Player>,
    steward: Child,
    /// In order of players.
    members: Vec<Child>,
    /// Somebody who asks, again and again, where an attack is on those who do.
    caller: Option<Caller>,
}

/// One `muster generate --ask` after the other, from the first honest node's directory.
struct Caller {
    home: PathBuf,
    logs: PathBuf,
    child: Option<Child>,
}

impl Caller {
    fn of(players: &[Player], logs: &Path, rehearsal: &Rehearsal) -> Option<Self> {
        let wanted = rehearsal.attackers.iter().any(Attack::wants_calls);
        let first = players.iter().find(|player| player.character == Character::Node).filter(|_| wanted)?;
        Some(Self { home: first.home.clone(), logs: logs.to_owned(), child: None })
    }

    /// Asks anew where the last text is written. A caller that fails has found nobody to ask, and tries again.
    fn go_on(&mut self) -> Outcome<()> {
        if let Some(child) = &mut self.child
            && child.ended()?.is_none()
        {
            return Ok(());
        }
        let words = ["generate".as_ref(), self.home.as_os_str(), "--ask".as_ref(), "1".as_ref()];
        self.child = Some(Child::start("caller", &self.logs, &words)?);
        Ok(())
    }
}

impl Cast {
    /// Starts the steward, and then everyone else with invitations to it.
    ///
    /// # Errors
    /// [`Failure`] of the first process that does not come up.
    pub(super) fn start(
        rehearsal: &Rehearsal,
        workspace: &Workspace,
        interrupt: &Interrupt,
    ) -> Outcome<Self> {
        let logs = workspace.path("logs");
        fs::create_dir_all(&logs)
            .map_err(|error| Failure::environment(format!("{}: cannot be made ({error})", logs.display())))?;
        let folder = workspace.path("run");
        let most = CONNECTIONS.to_string();
        let words = ["host".as_ref(), folder.as_os_str(), "--listen".as_ref(), LOOPBACK.as_ref()];
        let backend = rehearsal.backend.words();
        // All members have one address.
        let words = [&words[..], &["--exit-when-done", "--per-address", &most].map(OsStr::new)].concat();
        let web = rehearsal.web.as_deref().into_iter().flat_map(|address| ["--web", address].map(OsStr::new));
        let words: Vec<&OsStr> =
            words.into_iter().chain(web).chain(backend.iter().map(AsRef::as_ref)).collect();
        let steward = Child::start("steward", &logs, &words)?;
        let mut cast =
            Self { players: players(rehearsal, workspace), steward, members: Vec::new(), caller: None };
        cast.wait_for_door(&folder.join(ADDRESSES), interrupt)?;
        let node = ticket(&folder, Role::Node, rehearsal.nodes())?;
        let verifier = ticket(&folder, Role::Verifier, rehearsal.verifiers.into())?;
        for player in &cast.players {
            let ticket = if player.character.role() == Role::Verifier { &verifier } else { &node };
            cast.members.push(player.start(&logs, &ticket.to_line(), rehearsal)?);
        }
        cast.caller = Caller::of(&cast.players, &logs, rehearsal);
        Ok(cast)
    }

    /// Where the steward shows the run to browsers, in its words.
    ///
    /// # Errors
    /// [`Failure`] when somebody interrupts, or the steward has ended.
    pub(super) fn page(&mut self, interrupt: &Interrupt) -> Outcome<String> {
        loop {
            if let Some(line) = self.steward.said(PAGE) {
                return Ok(line);
            }
            interrupt.check()?;
            if self.steward.ended()?.is_some() {
                return Err(self.steward.fault("ended before it showed the run"));
            }
            sleep(PAUSE);
        }
    }

    fn wait_for_door(&mut self, address: &Path, interrupt: &Interrupt) -> Outcome<()> {
        let began = Instant::now();
        while !address.exists() {
            interrupt.check()?;
            if self.steward.ended()?.is_some() {
                return Err(self.steward.fault("ended before it listened"));
            }
            if began.elapsed() > PATIENCE {
                return Err(self.steward.fault("does not listen"));
            }
            sleep(PAUSE);
        }
        Ok(())
    }

    /// Checks on everyone while the run goes on: only a cheat that was banned, or left, may be gone.
    ///
    /// # Errors
    /// [`Failure`] with the end of the log of a process that ended.
    pub(super) fn check(&mut self) -> Outcome<()> {
        for (player, child) in self.players.iter().zip(&mut self.members) {
            let Some(status) = child.ended()? else { continue };
            if !player.may_end_with(status.code()) {
                return Err(child.fault(&format!("ended early ({status})")));
            }
        }
        if let Some(caller) = &mut self.caller {
            caller.go_on()?;
        }
        match self.steward.ended()? {
            Some(status) => Err(self.steward.fault(&format!("ended early ({status})"))),
            None => Ok(()),
        }
    }

    /// A failure with the end of the steward's log.
    pub(super) fn stalled(&self) -> Failure {
        self.steward.fault("reports nothing any more")
    }

    /// Waits until everyone has gone, now that the run is over. On a slow machine many states wait to be measured on
    /// the held-out text by then, and the steward's report grows with each.
    ///
    /// # Errors
    /// [`Failure`] with the end of the log of a process that stays, or ends badly.
    pub(super) fn dismiss(&mut self, report: &Path, interrupt: &Interrupt) -> Outcome<()> {
        self.caller = None;
        let (mut heard, mut length) = (Instant::now(), 0);
        let members = self.players.iter().map(Some).zip(&mut self.members);
        for (player, child) in members.chain([(None, &mut self.steward)]) {
            let status = loop {
                interrupt.check()?;
                if let Some(status) = child.ended()? {
                    break status;
                }
                let reported = fs::metadata(report).map_or(0, |report| report.len());
                if reported > length {
                    (heard, length) = (Instant::now(), reported);
                }
                if heard.elapsed() > PATIENCE {
                    return Err(child.fault("does not end though the run is over"));
                }
                sleep(PAUSE);
            };
            if !status.success() && !player.is_some_and(|player| player.may_end_with(status.code())) {
                return Err(child.fault(&format!("ended badly ({status})")));
            }
        }
        Ok(())
    }
}

impl Player {
    fn may_end_with(&self, code: Option<i32>) -> bool {
        // An attack may leave by itself, or be banned; an honest member that ends early is a bug.
        let gone = [Exit::Good, Exit::Negative].map(|exit| Some(i32::from(exit.code())));
        !self.character.honest() && gone.contains(&code)
    }

    fn start(&self, logs: &Path, ticket: &str, rehearsal: &Rehearsal) -> Outcome<Child> {
        let home = self.home.as_os_str();
        let (from, seed) = (rehearsal.from.to_string(), rehearsal.seed.to_string());
        let coalition = self.home.with_file_name(COALITION);
        let backend = rehearsal.backend.words();
        let mut words: Vec<&OsStr> = match self.character {
            Character::Node => {
                vec![
                    "join".as_ref(),
                    ticket.as_ref(),
                    "--data-dir".as_ref(),
                    home,
                    "--listen".as_ref(),
                    LOOPBACK.as_ref(),
                ]
            }
            Character::Attacker(attack) => {
                let attack: &OsStr = attack.name.as_ref();
                let role =
                    ["demo-role".as_ref(), "attacker".as_ref(), attack, from.as_ref(), ticket.as_ref(), home];
                let plan = ["--seed".as_ref(), seed.as_ref(), "--coalition".as_ref(), coalition.as_os_str()];
                [&role[..], &plan].concat()
            }
            Character::Verifier => vec!["demo-role".as_ref(), "verifier".as_ref(), ticket.as_ref(), home],
            Character::Liar(lie) => {
                vec!["demo-role".as_ref(), "liar".as_ref(), lie.name().as_ref(), ticket.as_ref(), home]
            }
        };
        words.extend(["--name", self.name.as_str()].map(OsStr::new));
        words.extend(backend.iter().map(AsRef::<OsStr>::as_ref));
        Child::start(&self.name, logs, &words)
    }
}

/// What a board says of a rehearsal.
pub(super) fn surroundings(rehearsal: &Rehearsal) -> Surroundings {
    let cheats = characters(rehearsal).filter(|(_, character)| !character.honest());
    Surroundings {
        doing: if rehearsal.drill { "drill" } else { "demo" },
        keys: "q or Ctrl-C: stop",
        attackers: cheats.map(|(name, _)| name).collect(),
        ..Surroundings::default()
    }
}

fn players(rehearsal: &Rehearsal, workspace: &Workspace) -> Vec<Player> {
    let player = |(name, character)| Player { home: workspace.path("members").join(&name), name, character };
    characters(rehearsal).map(player).collect()
}

fn characters(rehearsal: &Rehearsal) -> impl Iterator<Item = (String, Character)> {
    let nodes = (1..=rehearsal.honest).map(|number| (format!("node-{number}"), Character::Node));
    let attackers = rehearsal.attackers.iter().enumerate().map(|(index, attack)| {
        let before = rehearsal.attackers.iter().take(index).filter(|before| *before == attack).count();
        (numbered(attack.name, before), Character::Attacker(*attack))
    });
    let honest = usize::from(rehearsal.verifiers).saturating_sub(rehearsal.liars.len());
    let verifiers = (0..honest).map(|before| (numbered("verifier", before), Character::Verifier));
    let liars = rehearsal.liars.iter().enumerate().map(|(index, lie)| {
        let before = rehearsal.liars.iter().take(index).filter(|before| *before == lie).count();
        (numbered(lie.name(), before), Character::Liar(*lie))
    });
    nodes.chain(attackers).chain(verifiers).chain(liars)
}

/// A name, with a number unless it is the first of its kind.
fn numbered(name: &str, before: usize) -> String {
    if before == 0 { name.to_owned() } else { format!("{name}-{}", before + 1) }
}

fn ticket(folder: &Path, role: Role, uses: u32) -> Outcome<Ticket> {
    let (folder, founder, role) = (folder.to_owned(), role == Role::Node, Some(role));
    let (addresses, organiser_key) = (Vec::new(), None);
    invite(&InviteOptions { folder, role, founder, uses, valid_for: VALID, addresses, organiser_key })
}
