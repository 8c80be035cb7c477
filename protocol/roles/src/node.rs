//! A node: what it owes in a round, what it says of it, its answers to audits, and how its membership ends.
//!
//! The machine decides and is honest; whoever drives it computes, writes, sends blocks and speaks, and may lie on the way.
//! A [`NodeEffect`] is begun before the next one is asked for. What takes long comes back as a [`NodeInput`].
//!
//! The way of a contribution: [`NodeEffect::Compute`] has it summed and written down, [`NodeEffect::WriteEcho`] says
//! which freeze was seen, [`NodeEffect::Prepare`] and [`NodeEffect::Bring`] take its parts to their keepers
//! (`delivery`), [`NodeEffect::Compare`] looks at what came out. [`NodeEffect::MakeRows`] and [`NodeEffect::Open`]
//! answer for it (`tables`). What the steward has promised for it is held against the records (`pledges`).

mod contact;
mod delivery;
mod duty;
mod membership;
mod pledges;
mod tables;
mod twin;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use muster_core::ids::{Block, Digest, Height, MemberId, Part, Round, Row, Slot};
use muster_core::ledger::{Ledger, RoundView, Stage};
use muster_core::messages::audit::{AuditRequest, Rows, TableOpening};
use muster_core::messages::enrol::{Addresses, Engagement};
use muster_core::messages::evidence::Evidence;
use muster_core::messages::record::{Ban, Record};
use muster_core::messages::round::{Bitmap, Commit, Delivered, Receipt};
use muster_core::messages::wire::{Notice, Request, Response};
use muster_core::round::{Check, Checks, Duties, Obligation};
use muster_core::sign::{Identity, Signed};

use contact::Contact;
use delivery::Delivery;
pub use delivery::Parcel;
pub use duty::{Computed, commit_to};
use membership::Dismissal;
pub use membership::is_at_rest;
pub use pledges::Promise;
use pledges::{Broken, Pledges};
use tables::Tables;
use twin::Twin;

/// What a machine begins with.
pub struct NodeSetup {
    /// The ledger as far as it is known.
    pub ledger: Arc<Ledger>,
    /// Who takes part.
    pub identity: Arc<Identity>,
    /// What it has others dial.
    pub addresses: Addresses,
    /// What it wants to do.
    pub engagement: Engagement,
    /// What the salts of its tables come from.
    pub secret: [u8; 32],
    /// What its disk has committed to in the newest rounds.
    pub committed: Vec<Signed<Commit>>,
}

/// What reaches a node.
pub enum NodeInput {
    /// The ledger after whatever is new, and whether the state is the newest sealed one. What was read with it follows.
    Followed {
        /// The ledger.
        ledger: Arc<Ledger>,
        /// Whether the state is at it.
        in_step: bool,
        /// Whether the state has the row that was drawn for this member.
        complete: bool,
    },
    /// A record that the ledger has taken.
    Sealed(Box<Record>),
    /// Something on the board.
    Notice(Box<Notice>),
    /// The results of this round are applied.
    Applied(Round),
    /// The commitments to a contribution: the first is written down.
    Committed(Vec<Signed<Commit>>),
    /// Which freeze of this round may be said to be seen, as it is written down; none where nothing is said.
    EchoWritten(Round, Option<Digest>),
    /// Which parts of a contribution are brought, and to whom: none where it is not here any more.
    Prepared {
        /// The round.
        round: Round,
        /// 0, or 1 after a reassignment.
        attempt: u8,
        /// Parts, and a keeper of each.
        parts: Vec<(Part, MemberId)>,
    },
    /// What the keeper of a parcel signed; none where it did not in time.
    Brought(Parcel, Option<Signed<Receipt>>),
    /// A part was reduced, to values of these digests; none where that was not possible.
    Reduced(PartTask, Vec<Digest>),
    /// Results were compared with this member's contribution: the blocks to object to, by part.
    Compared(Check, BTreeMap<Part, Vec<Block>>),
    /// The rows of the contribution that an audit asks for, and the root that was committed to.
    Rows {
        /// What asks for them.
        request: Box<Signed<AuditRequest>>,
        /// The root.
        root: Digest,
        /// The table.
        rows: Rows,
    },
    /// The steward's answer; none where it refused, or was not to be reached for long.
    Told(Box<Request>, Option<Response>),
    /// The sealed records that a promise is held against, where they were found.
    Recalled {
        /// What was promised.
        promise: Box<Promise>,
        /// The one by which it is settled.
        inputs: Option<Signed<Record>>,
        /// The one that it follows.
        reassign: Option<Signed<Record>>,
    },
    /// This member wants to leave for good.
    Leave,
    /// What it wants to do from the next round on.
    Engage(Engagement),
    /// Where it is met behind its router from now on.
    Met(Addresses),
    /// Somebody wants it to stop; it may join again.
    Interrupt,
    /// Time has passed.
    Tick,
}

/// What is to be done, in this order.
pub enum NodeEffect {
    /// Sum the leaves of this slot, at most `quota`, write down what is committed to, and sign it:
    /// [`NodeInput::Committed`].
    Compute {
        /// The round.
        round: Round,
        /// The member's slot.
        slot: Slot,
        /// Most leaves.
        quota: u32,
    },
    /// Sum the leaves of this slot in the round that will follow, if it will be as foreseen: a [`NodeEffect::Compute`] of it finds
    /// them done. Nothing comes back.
    Foresee(Box<RoundView>, Slot),
    /// Write down that this freeze was seen, unless another one is written: [`NodeInput::EchoWritten`].
    WriteEcho(Round, Digest),
    /// Have the contribution at hand to deliver these parts: [`NodeInput::Prepared`].
    Prepare {
        /// The round.
        round: Round,
        /// 0, or 1 after a reassignment.
        attempt: u8,
        /// Parts, and a keeper of each.
        parts: Vec<(Part, MemberId)>,
    },
    /// Bring a part to its keeper: [`NodeInput::Brought`].
    Bring(Parcel),
    /// Reduce a part and serve its values: [`NodeInput::Reduced`].
    Reduce(PartTask),
    /// Compare results with this member's contribution: [`NodeInput::Compared`]. Results that do not come in time need no word.
    Compare(Check),
    /// Write down the table of a round that was just frozen.
    Tabulate(Round),
    /// Make the rows that an audit asks for: [`NodeInput::Rows`].
    MakeRows(Box<Signed<AuditRequest>>),
    /// Sign this opening of a table of this round, and say it.
    Open(Round, Box<TableOpening>),
    /// Say these to the steward one after the other, each until it answers: [`NodeInput::Told`].
    Say(Vec<Request>),
    /// Find the sealed records that this promise is about: [`NodeInput::Recalled`].
    Recall(Box<Promise>),
    /// Fetch and keep what this member is banned for.
    FetchEvidence(Box<Ban>),
    /// Drop what was contributed before this round.
    Prune(Round),
    /// For people.
    Tell(Milestone),
    /// The membership is over.
    End(MembershipEnd),
}

/// A part that this member is to reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartTask {
    /// The round.
    pub round: Round,
    /// The part.
    pub part: Part,
    /// 0, or 1 after a reassignment.
    pub attempt: u8,
    /// The sealed inputs.
    pub inputs: Bitmap,
}

/// What happened, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Milestone {
    /// A round is over; how many leaves of this member count in it.
    Over(Round, u32),
    /// It is banned, and serves what it still holds.
    Banned,
    /// Its leave is sealed; it finishes the round.
    Leaving,
    /// It was interrupted; it finishes the round.
    Stopping,
    /// No verifier is active any more: the next round waits for one.
    Unwatched,
}

/// How a membership ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipEnd {
    /// The run is over.
    Closed,
    /// The member left for good.
    Left,
    /// It was interrupted, and may join again.
    Interrupted,
    /// It rests, and nobody waits for it or has anything to ask it; it may join again.
    Resting,
    /// It was banned.
    Banned(Box<Ban>),
    /// Another machine runs with its key, and is there.
    Elsewhere(Addresses),
    /// Another machine runs with its key, and has committed in this round.
    Twice(Round),
    /// The steward broke a promise, shown by this: why, in words.
    Convicted(Box<Evidence>, String),
}

/// The node's machine.
pub struct Node {
    identity: Arc<Identity>,
    contact: Contact,
    engagement: Engagement,
    ledger: Arc<Ledger>,
    in_step: bool,
    /// Whether it has the row that was drawn for it.
    complete: bool,
    duties: Duties,
    checks: Checks,
    tables: Tables,
    pledges: Pledges,
    twin: Twin,
    effects: VecDeque<NodeEffect>,
    /// What was given out, and is not begun yet.
    owed: VecDeque<Obligation>,
    /// Echoes on their way to the steward, and the deliveries that wait for them.
    echoes: BTreeMap<Round, Vec<Delivered>>,
    deliveries: BTreeMap<(Round, u8), Delivery>,
    now: u64,
    /// Whether something has happened since the last turn; whether the ledger was followed, and a round applied.
    stirred: bool,
    followed: bool,
    applied: bool,
    /// The height at which it last said that it is back, unless that was refused.
    back: Option<Height>,
    /// Height of the ledger when it had read everything for the first time.
    since: Option<Height>,
    /// The newest round that was foreseen.
    foreseen: Option<Round>,
    /// The row that it has said it holds, unless that was refused.
    ready: Option<Row>,
    dismissal: Option<Dismissal>,
    /// How it ends once the round under way is over.
    leaving: Option<MembershipEnd>,
    ended: bool,
}

impl Node {
    /// A machine at time 0.
    pub fn new(setup: NodeSetup) -> Self {
        let NodeSetup { ledger, identity, addresses, engagement, secret, committed } = setup;
        let me = identity.id();
        Self {
            contact: Contact::new(addresses),
            engagement,
            in_step: false,
            complete: false,
            duties: Duties::new(me),
            checks: Checks::new(me),
            tables: Tables::new(ledger.run(), secret),
            pledges: Pledges::default(),
            twin: Twin::new(&committed, &ledger),
            effects: VecDeque::new(),
            owed: VecDeque::new(),
            echoes: BTreeMap::new(),
            deliveries: BTreeMap::new(),
            now: 0,
            stirred: false,
            followed: false,
            applied: false,
            back: None,
            since: None,
            foreseen: None,
            ready: None,
            dismissal: None,
            leaving: None,
            ended: false,
            identity,
            ledger,
        }
    }

    /// The ledger as far as it was followed.
    pub fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// Leaves of this member that counted, those before this process began included.
    pub fn leaves(&self) -> u64 {
        self.ledger.member(&self.me()).map_or(0, |member| member.service.leaves)
    }

    /// Keepers of parts of this member's contributions that have yet to sign for them.
    pub fn undelivered(&self) -> BTreeSet<MemberId> {
        self.deliveries.values().flat_map(Delivery::awaited).collect()
    }

    /// Takes something in. Time never goes back.
    pub fn handle(&mut self, now: u64, input: NodeInput) {
        self.now = self.now.max(now);
        self.stirred = true;
        match input {
            NodeInput::Followed { ledger, in_step, complete } => {
                self.complete = complete;
                self.follow(ledger, in_step);
            }
            NodeInput::Sealed(record) => self.sealed(&record.body),
            NodeInput::Notice(notice) => self.notice(*notice),
            NodeInput::Applied(round) => self.over(round),
            NodeInput::Committed(commits) => {
                self.twin.committed(&commits, &self.ledger);
                self.say(commits.into_iter().map(Request::Commit));
            }
            NodeInput::EchoWritten(round, freeze) => self.echo_written(round, freeze),
            NodeInput::Prepared { round, attempt, parts } => self.prepared(round, attempt, parts),
            NodeInput::Brought(parcel, receipt) => self.brought(&parcel, receipt),
            NodeInput::Reduced(task, digests) => self.reduced(task, &digests),
            NodeInput::Compared(check, objections) => self.compared(&check, &objections),
            NodeInput::Rows { request, root, rows } => self.seal_table(&request, root, rows),
            NodeInput::Told(request, answer) => self.told(*request, answer),
            NodeInput::Recalled { promise, inputs, reassign } => {
                let broken = inputs.and_then(|inputs| promise.broken(&self.ledger, inputs, reassign));
                self.break_off(broken);
            }
            NodeInput::Leave => self.leave(),
            NodeInput::Engage(engagement) => self.engage(engagement),
            NodeInput::Met(behind) => self.met(behind),
            NodeInput::Interrupt => self.interrupted(),
            NodeInput::Tick => {}
        }
    }

    /// This member was taken without an address.
    pub fn only_dials(&mut self) {
        self.contact.give_up(self.now);
    }

    /// What is to be done next. Only one thing is decided at a time.
    pub fn poll_effect(&mut self) -> Option<NodeEffect> {
        loop {
            if let Some(effect) = self.effects.pop_front() {
                return Some(effect);
            }
            if self.ended {
                return None;
            }
            if let Some(duty) = self.owed.pop_front() {
                // COMMIT-8: nothing is computed that would not be signed.
                let begun = self.twin.begun(self.now, duty);
                begun.into_iter().for_each(|duty| self.begin(duty));
            } else if std::mem::take(&mut self.stirred) {
                self.turn();
            } else {
                return None;
            }
        }
    }

    /// When something follows from the time alone.
    pub fn poll_timeout(&self) -> Option<u64> {
        let dismissal = self.dismissal.as_ref().and_then(Dismissal::timeout);
        let rooms = [self.twin.timeout(), self.contact.timeout()];
        dismissal.into_iter().chain(rooms.into_iter().flatten()).filter(|due| *due > self.now).min()
    }

    /// There is news. A promise that it breaks ends the membership before anything else is done.
    fn follow(&mut self, ledger: Arc<Ledger>, in_step: bool) {
        (self.ledger, self.in_step, self.followed) = (ledger, in_step, true);
        if self.since.is_none() {
            self.since = Some(self.ledger.height());
            self.twin.began(&self.ledger);
        }
        // AUDIT-13: before anything is decided on the news; nobody follows a steward that broke its word.
        let broken = self.pledges.broken_commit(&self.ledger);
        self.break_off(broken);
        let due = self.pledges.due(&self.ledger);
        self.effects.extend(due.into_iter().map(|promise| NodeEffect::Recall(Box::new(promise))));
    }

    /// What follows from the ledger, and from the time.
    fn turn(&mut self) {
        // A member that wants to leave finishes the round first: otherwise it would fail there (LEDGER-20).
        let over = std::mem::take(&mut self.applied) || self.is_idle();
        if over && let Some(ending) = self.leaving.take() {
            return self.end(ending);
        }
        if std::mem::take(&mut self.followed) | self.says_again() {
            self.come_back();
            self.be_ready();
        }
        if self.is_at_rest() {
            return self.end(MembershipEnd::Resting);
        }
        // On another state than the round's nothing can be computed.
        if self.ledger.stage() != Stage::Computing || self.in_step {
            self.owed.extend(self.twin.released(self.now, &self.ledger));
            self.owed.extend(self.duties.due(&self.ledger));
            // Duties before checks: others wait for what is owed, and the checks are looked at in the next turn.
            if !self.owed.is_empty() {
                self.stirred = true;
                return;
            }
            self.effects.extend(self.checks.due(&self.ledger).map(NodeEffect::Compare));
            self.foresee();
        }
        if let Some(ban) = self.served_out() {
            return self.end(MembershipEnd::Banned(ban));
        }
        // The outcome of the last round may come together with the end.
        if self.ledger.stage() == Stage::Closed && self.in_step {
            // A convict ends as one, however the run goes on.
            let ban = self.dismissal.take().map(|dismissal| dismissal.ban);
            self.end(ban.map_or(MembershipEnd::Closed, MembershipEnd::Banned));
        }
    }

    fn break_off(&mut self, broken: Option<Broken>) {
        if let Some(Broken { evidence, why }) = broken {
            self.end(MembershipEnd::Convicted(Box::new(evidence), why));
        }
    }

    /// Nothing is decided after the end.
    fn end(&mut self, ending: MembershipEnd) {
        if !std::mem::replace(&mut self.ended, true) {
            self.effects.push_back(NodeEffect::End(ending));
        }
    }

    fn say(&mut self, requests: impl IntoIterator<Item = Request>) {
        self.effects.push_back(NodeEffect::Say(requests.into_iter().collect()));
    }

    fn tell(&mut self, news: Milestone) {
        self.effects.push_back(NodeEffect::Tell(news));
    }

    fn me(&self) -> MemberId {
        self.identity.id()
    }
}
