//! What a steward, node or verifier does now: for the person at its machine, for scripts, for whoever watches machines.
//!
//! The program says what it knows ([`Status::of`] and what it adds), a [`desk::Desk`] asks it for that, [`socket`] gives it
//! to commands on this machine, and [`metrics`] to a monitoring system, if its owner wants that.

pub mod desk;
pub mod metrics;
#[cfg(unix)]
pub mod socket;
pub mod window;

use std::fmt::Write;
use std::time::Instant;

use muster_core::bug::OrBug;
use muster_core::ids::{Height, MemberId, Part};
use muster_core::ledger::{Ledger, Member, RoundView, Stage, Standing};
use muster_core::messages::enrol::Role;
use muster_net::endpoint::Line;
use serde::{Deserialize, Serialize};

use crate::words::{counted, lasting};

/// Peers and members of one wait that are named to people; programs read all of them.
const NAMED: usize = 12;
/// How many times as long as a phase may take nothing is sealed before a program counts as ill.
const PHASES: f64 = 4.0;

/// What a program does now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// `steward`, `node` or `verifier`.
    pub role: String,
    /// Its key.
    pub member: String,
    /// Name of the run.
    pub name: String,
    /// Id of the run.
    pub run: String,
    /// Seconds since the program began.
    pub up: f64,
    /// The round under way, or the next one.
    pub round: u32,
    /// Rounds of the whole run.
    pub rounds: u32,
    /// `empty`, `gathering`, `computing`, `exchanging`, `reducing`, `auditing` or `over`; `paused` where it is in no run meanwhile.
    pub phase: String,
    /// Seconds since this program saw a new record.
    pub quiet: f64,
    /// The longest that the phase takes, in seconds; none where it waits for people.
    pub patience: Option<f64>,
    /// What it waits for, and on whom.
    pub waits: Vec<Wait>,
    /// Why it pauses, if it does.
    pub paused: Option<Paused>,
    /// The members that are not gone, this one left out.
    pub peers: Vec<Peer>,
    /// What its channels have carried since it began.
    pub traffic: Traffic,
    /// What its folder takes.
    pub disk: Disk,
    /// What it has done for the run, by sealed records.
    pub credit: Credit,
}

/// A pause of a volunteer's machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paused {
    /// Why, in words.
    pub why: String,
    /// Until when, in local time, like `2026-11-28 22:00:00`; none where nobody knows.
    pub until: Option<String>,
}

impl Paused {
    /// For people.
    pub fn words(&self) -> String {
        match &self.until {
            Some(until) => format!("{}; it goes on at {until}", self.why),
            None => self.why.clone(),
        }
    }
}

/// Something that is waited for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// What, in words.
    pub what: String,
    /// On these members; empty where it is nobody's, or nobody knows whose.
    pub on: Vec<String>,
}

/// How a member is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Over a connection that this program dialled.
    Dialled,
    /// Over one that goes through a relay, the steward's or a member's: no direct way through both routers was found so far.
    Relayed,
    /// Over a connection that the member dialled.
    DialsIn,
    /// At its address, once there is something to say to it.
    Known,
    /// Not now: nobody answered at its address lately.
    Resting,
    /// By the steward alone: it has no address at which others can dial it.
    #[default]
    NoAddress,
}

impl Way {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Dialled, Self::Relayed, Self::DialsIn, Self::Known, Self::Resting, Self::NoAddress];

    /// Of a member with an address or none, at which this program is connected or may dial now.
    pub fn of(has_address: bool, line: Option<Line>, may_dial: bool) -> Self {
        match (has_address, line, may_dial) {
            (false, ..) => Self::NoAddress,
            (_, Some(Line::Direct), _) => Self::Dialled,
            (_, Some(Line::Relayed), _) => Self::Relayed,
            (_, None, true) => Self::Known,
            (_, None, false) => Self::Resting,
        }
    }

    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Dialled => "dialled",
            Self::Relayed => "dialled through a relay",
            Self::DialsIn => "dials in",
            Self::Known => "not connected now",
            Self::Resting => "nobody answers there",
            Self::NoAddress => "only dials out: what it needs goes through the steward",
        }
    }

    /// For programs.
    pub fn word(self) -> &'static str {
        match self {
            Self::Dialled => "dialled",
            Self::Relayed => "relayed",
            Self::DialsIn => "dials_in",
            Self::Known => "known",
            Self::Resting => "resting",
            Self::NoAddress => "no_address",
        }
    }
}

/// A member, as this program sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Its key.
    pub member: String,
    /// What it calls itself; may be empty.
    pub name: String,
    /// `steward`, `node` or `verifier`.
    pub role: String,
    /// `active`, `supporting`, `resting`, `away` or `silent`.
    pub standing: String,
    /// Where others dial it.
    pub addresses: Vec<String>,
    /// How it is reached.
    pub way: Way,
    /// What it combines in the round under way; none where it combines nothing.
    pub combines: Option<Combines>,
}

/// The parts of a round that a member combines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Combines {
    /// How many.
    pub parts: usize,
    /// Of so many.
    pub of: usize,
    /// How fast its line is beside others (LEDGER-25); none where lines are not weighed.
    pub share_class: Option<u8>,
}

impl Combines {
    fn of(view: &RoundView, member: &MemberId) -> Option<Self> {
        let slot = view.slot_of(member).filter(|slot| view.aggregators().contains(slot))?;
        let parts = (0..view.parts().len() as u16).map(Part);
        let parts = parts.filter(|part| view.aggregators_in(*part, 0).any(|of| of == slot)).count();
        let class = view.classes().get(slot.index()).filter(|_| view.weighs_lines());
        Some(Self { parts, of: view.parts().len(), share_class: class.map(|class| class.0) })
    }

    fn words(&self) -> String {
        let class = self.share_class.map(|class| format!(", share class {class}")).unwrap_or_default();
        format!("; combines {} of {}{class}", self.parts, counted(self.of, "part"))
    }
}

/// Bytes over a program's channels, encryption included, handshakes and gossip not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Sent.
    pub sent: u64,
    /// Received.
    pub received: u64,
    /// Bytes of others that this program's relay has carried, to members that reach each other by no other way.
    #[serde(default)]
    pub relayed: u64,
}

/// Bytes of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// That the folder takes.
    pub used: u64,
    /// That are free there; none where the system does not tell.
    pub free: Option<u64>,
}

/// What sealed records say of a member's work (STAND-12).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credit {
    /// Leaves that counted.
    pub leaves: u64,
    /// Leaves that verifiers recomputed and found right.
    pub verified: u64,
    /// Audits that it passed as a verifier.
    pub audits: u64,
    /// Members that were banned on its accusation.
    pub convicted: u64,
    /// Whether it has weight: newcomers on probation have none.
    pub weighs: bool,
}

impl Status {
    /// What a ledger says of the run and of this member. `way` says how a member is reached.
    pub fn of(ledger: &Ledger, role: &str, me: &MemberId, way: impl Fn(&Member) -> Way) -> Self {
        let manifest = ledger.manifest();
        let current = ledger.current().filter(|_| is_round(ledger.stage()));
        let own = ledger.member(me);
        let gone = |member: &&Member| !matches!(member.standing, Standing::Left | Standing::Banned);
        let peers = ledger.members().iter().filter(gone).filter(|member| member.id != *me);
        Self {
            role: role.to_owned(),
            member: full(me),
            name: manifest.name.to_string(),
            run: format!("{:#}", ledger.run()),
            round: current.map_or(ledger.next_round(), |view| view.round()).0,
            rounds: manifest.training.rounds,
            phase: phase(ledger.stage()).to_owned(),
            patience: patience(ledger).map(|milliseconds| f64::from(milliseconds) / 1e3),
            waits: waits(ledger),
            peers: peers.map(|member| peer(member, way(member), current)).collect(),
            credit: own.map(|own| credit(ledger, own)).unwrap_or_default(),
            ..Self::default()
        }
    }

    /// What a program says while it is in no run: what it said last, or hardly anything, and why it pauses.
    #[must_use]
    pub fn asleep(self, paused: Paused) -> Self {
        let phase = "paused".to_owned();
        Self { phase, paused: Some(paused), patience: None, waits: Vec::new(), peers: Vec::new(), ..self }
    }

    /// Whether it goes on as it should: within a round, records follow each other.
    pub fn is_well(&self) -> bool {
        self.patience.is_none_or(|patience| self.quiet < PHASES * patience)
    }

    /// For programs: one line of JSON.
    pub fn json(&self) -> String {
        serde_json::to_string(self).or_bug("a status has names for its fields").unwrap_or_default()
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, text: &mut String) -> std::fmt::Result {
        let Self { traffic, disk, credit, .. } = self;
        writeln!(
            text,
            "run        {} {}, round {} of {}",
            self.name,
            short(&self.run),
            self.round,
            self.rounds
        )?;
        writeln!(text, "this       {} {}, for {}", self.role, short(&self.member), lasting(self.up))?;
        let ill = if self.is_well() { "" } else { "; that is too long" };
        writeln!(text, "phase      {}; the newest record came {} ago{ill}", self.phase, lasting(self.quiet))?;
        if let Some(paused) = &self.paused {
            writeln!(text, "paused     {}", paused.words())?;
        }
        for wait in &self.waits {
            writeln!(text, "waits for  {}{}", wait.what, of(&wait.on))?;
        }
        let ways = Way::ALL.map(|way| (way, self.peers.iter().filter(|peer| peer.way == way).count()));
        let ways = ways.iter().filter(|(_, count)| *count > 0);
        let ways: Vec<String> = ways.map(|(way, count)| format!("{count} {}", way.words())).collect();
        let colon = if ways.is_empty() { "" } else { ": " };
        writeln!(text, "peers      {}{colon}{}", counted(self.peers.len(), "member"), ways.join(", "))?;
        self.peers.iter().take(NAMED).try_for_each(|peer| writeln!(text, "           {}", peer.line()))?;
        if self.peers.len() > NAMED {
            writeln!(text, "           and {} more; --json lists all", self.peers.len() - NAMED)?;
        }
        let relayed = match traffic.relayed {
            0 => String::new(),
            relayed => format!("; {} of others carried by its relay", size(relayed)),
        };
        writeln!(
            text,
            "traffic    {} sent, {} received{relayed}",
            size(traffic.sent),
            size(traffic.received)
        )?;
        let free = disk.free.map(|free| format!(", {} free", size(free))).unwrap_or_default();
        writeln!(text, "disk       {} used{free}", size(disk.used))?;
        match &*self.role {
            "node" => {
                let weight = if credit.weighs { "" } else { "; on probation: its leaves do not count yet" };
                let leaves = counted(credit.leaves, "leaf");
                writeln!(
                    text,
                    "credit     {leaves} counted, {} recomputed and right{weight}",
                    credit.verified
                )
            }
            "verifier" => {
                let audits = counted(credit.audits, "audit");
                writeln!(
                    text,
                    "credit     {audits} passed, {} convicted",
                    counted(credit.convicted, "member")
                )
            }
            _ => Ok(()),
        }
    }
}

impl Peer {
    /// The steward, which is in no ledger as a member.
    pub fn steward(member: &MemberId, addresses: Vec<String>, way: Way) -> Self {
        let (role, standing) = ("steward".to_owned(), "active".to_owned());
        Self { member: full(member), name: String::new(), role, standing, addresses, way, combines: None }
    }

    fn line(&self) -> String {
        let name = if self.name.is_empty() { String::new() } else { format!(" ({})", self.name) };
        let standing = if self.standing == "active" { "" } else { &*format!(", {}", self.standing) };
        let at = if self.addresses.is_empty() {
            String::new()
        } else {
            format!(" at {}", self.addresses.join(", "))
        };
        let combines = self.combines.map(|combines| combines.words()).unwrap_or_default();
        format!("{} {}{name}{standing}: {}{at}{combines}", self.role, short(&self.member), self.way.words())
    }
}

impl Wait {
    /// For something, on these.
    pub fn new(what: impl Into<String>, on: impl IntoIterator<Item = MemberId>) -> Self {
        Self { what: what.into(), on: on.into_iter().map(|member| full(&member)).collect() }
    }
}

/// What the ledger alone says that the run waits for.
fn waits(ledger: &Ledger) -> Vec<Wait> {
    let admission = &ledger.manifest().admission;
    match ledger.stage() {
        Stage::Gathering if ledger.current().is_none() => {
            let here = |role| ledger.members().iter().filter(|member| member.role == role).count();
            let lacks = |role, wanted: u16| usize::from(wanted).saturating_sub(here(role));
            let wanted = [(Role::Node, admission.start_nodes), (Role::Verifier, admission.start_verifiers)];
            let lacking = wanted.map(|(role, wanted)| (role, lacks(role, wanted)));
            let lacking = lacking.into_iter().filter(|(_, lacking)| *lacking > 0);
            lacking.map(|(role, lacking)| Wait::new(counted(lacking, role.word()), [])).collect()
        }
        Stage::Gathering => vec![Wait::new("a node that takes part", [])],
        Stage::Auditing => vec![Wait::new("the last audits", [])],
        _ => Vec::new(),
    }
}

fn is_round(stage: Stage) -> bool {
    matches!(stage, Stage::Computing | Stage::Exchanging | Stage::Reducing)
}

/// T of the phase, in milliseconds.
fn patience(ledger: &Ledger) -> Option<u32> {
    let timers = &ledger.manifest().timers;
    match ledger.stage() {
        Stage::Computing => Some(timers.commit),
        Stage::Exchanging => Some(timers.part),
        Stage::Reducing => Some(timers.result),
        _ => None,
    }
}

fn phase(stage: Stage) -> &'static str {
    match stage {
        Stage::Empty => "empty",
        Stage::Gathering => "gathering",
        Stage::Computing => "computing",
        Stage::Exchanging => "exchanging",
        Stage::Reducing => "reducing",
        Stage::Auditing => "auditing",
        Stage::Closed => "over",
    }
}

fn peer(member: &Member, way: Way, view: Option<&RoundView>) -> Peer {
    Peer {
        combines: view.and_then(|view| Combines::of(view, &member.id)),
        member: full(&member.id),
        name: member.name.to_string(),
        role: member.role.word().to_owned(),
        standing: member.standing_word().to_owned(),
        addresses: member.addresses.iter().map(|address| address.escape_debug().to_string()).collect(),
        way,
    }
}

fn credit(ledger: &Ledger, own: &Member) -> Credit {
    Credit {
        leaves: own.service.leaves,
        verified: ledger.credit(own),
        audits: own.service.passed,
        convicted: own.service.convicted,
        weighs: ledger.weighs(own),
    }
}

fn full(member: &MemberId) -> String {
    format!("{member:#}")
}

/// The beginning of an id, as logs have it.
fn short(id: &str) -> &str {
    id.get(..16).unwrap_or(id)
}

/// Whom a wait is on, in words.
fn of(members: &[String]) -> String {
    let named: Vec<&str> = members.iter().take(NAMED).map(|member| short(member)).collect();
    match members.len() {
        0 => String::new(),
        many if many > NAMED => format!(" of {} and {} more", named.join(", "), many - NAMED),
        _ => format!(" of {}", named.join(", ")),
    }
}

fn size(bytes: u64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB"];
    let power = bytes.checked_ilog10().map_or(0, |digits| digits as usize / 3).min(units.len() - 1);
    let scaled = bytes as f64 / 1e3_f64.powi(power as i32);
    let unit = units.get(power).copied().unwrap_or_default();
    if power == 0 { format!("{bytes} {unit}") } else { format!("{scaled:.1} {unit}") }
}

/// Since when a program saw no new record.
#[derive(Clone, Copy, Debug)]
pub struct Pulse {
    began: Instant,
    seen: Option<(Height, Instant)>,
}

impl Default for Pulse {
    fn default() -> Self {
        Self { began: Instant::now(), seen: None }
    }
}

impl Pulse {
    /// The ledger is at this height.
    pub fn at(&mut self, ledger: &Ledger) {
        if self.seen.is_none_or(|(height, _)| height != ledger.height()) {
            self.seen = Some((ledger.height(), Instant::now()));
        }
    }

    /// Puts in the times.
    pub fn fill(&self, status: &mut Status) {
        let since = self.seen.map_or(self.began, |(_, since)| since);
        (status.up, status.quiet) = (self.began.elapsed().as_secs_f64(), since.elapsed().as_secs_f64());
    }
}
