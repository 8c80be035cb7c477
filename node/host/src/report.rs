//! What the organiser sees and what programs read: progress, log lines, and one JSON line an event in `log.jsonl`.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use muster_core::audit::Judgement;
use muster_core::audit::docket::{OpenCase, WaitsFor};
use muster_core::audit::roster::Counts;
use muster_core::ids::{Digest, MemberId, Part, Round, Slot};
use muster_core::layout::Layout;
use muster_core::ledger::{Ledger, RoundView, Standing};
use muster_core::manifest::Manifest;
use muster_core::messages::audit::{AuditRequest, Finding, Recomputation};
use muster_core::messages::enrol::Role;
use muster_core::messages::record::{Ban, Idle, Rewind};
use muster_core::messages::round::PartResult;
use muster_core::round::Awaited;
use muster_organise::organiser_key;
use muster_replica::archive::mean_loss;
use muster_replica::exit::{Failure, Outcome};
use muster_replica::memory::MEASURED;
use muster_roles::steward::Bulletin;
use muster_roles::steward::past::{Found, PastRound};
use muster_show::progress::ProgressDisplay;
use muster_store::patience::patiently;
use muster_view::event::{FoundWord, LOG, LogEvent, PartEvent, PastEvent, RoundEvent};
use muster_view::story::DutyLine;
use muster_view::words::{audits, counted};

use super::held_out::HeldOutLoss;

/// Most aggregators named for a round in which nobody counted.
const SHOWN: usize = 3;

/// Tells what happens.
pub(super) struct Reporter {
    folder: PathBuf,
    progress: ProgressDisplay,
    log: File,
    round_began: Instant,
    /// Seconds of the round until each of its stages.
    stages: BTreeMap<String, f64>,
    audits: u64,
    passed: u64,
    guilty: u64,
    duties: BTreeMap<MemberId, Counts>,
    /// The newest loss on the held-out text.
    held_out: Option<HeldOutLoss>,
    /// Whether the end was told.
    concluded: bool,
}

impl Reporter {
    /// Appends to `log.jsonl` in a folder.
    ///
    /// # Errors
    /// [`Failure`] naming the file.
    pub(super) fn open(folder: &Path, drawn: bool) -> Outcome<Self> {
        let path = folder.join(LOG);
        let log = patiently(|| OpenOptions::new().append(true).create(true).open(&path));
        let log = log.map_err(|error| {
            Failure::environment(format!("{}: cannot be written ({error})", path.display()))
        })?;
        let progress = ProgressDisplay::new(drawn);
        Ok(Self {
            folder: folder.to_owned(),
            progress,
            log,
            round_began: Instant::now(),
            stages: BTreeMap::new(),
            audits: 0,
            passed: 0,
            guilty: 0,
            duties: BTreeMap::new(),
            held_out: None,
            concluded: false,
        })
    }

    /// This program begins, or goes on where another one ended.
    pub(super) fn started(&mut self, next: Round) {
        self.event(&LogEvent::Started { round: next.0 });
    }

    /// Reports what happened. `ledger` is as it was then; `duties` counts what the verifiers had to do, and have done, since
    /// this process began.
    pub(super) fn tell(&mut self, news: &Bulletin, ledger: &Ledger, duties: &BTreeMap<MemberId, Counts>) {
        match news {
            Bulletin::Admitted(member) => self.admit(ledger, *member),
            Bulletin::Began => self.begin(),
            Bulletin::Ended(round, pause) => {
                self.duties.clone_from(duties);
                self.round(ledger, *round);
                self.barren(ledger, *round, *pause);
            }
            Bulletin::Held(round, case) => self.held(*round, case),
            Bulletin::Awaits(round, awaited) => self.awaits(*round, *awaited),
            Bulletin::Banned(ban) => self.ban(ban),
            Bulletin::Idle(idle) => self.idle(idle),
            Bulletin::Moved(member, how) => self.moved(*member, how),
            Bulletin::TreeClosed(member) => self.close_tree(*member),
            Bulletin::WentBack(rewind, round) => self.rewind(rewind, *round),
            Bulletin::Requested(digest, request, verifier) => self.audit(*digest, request, *verifier),
            Bulletin::Judged(request, leaves, finding) => self.verdict(*request, *leaves, *finding),
            Bulletin::Recomputed(said, verifier) => self.recomputed(said, *verifier),
            Bulletin::Dismissed { accuser, culprit, why } => {
                self.dismissed(ledger.next_round(), *accuser, *culprit, why);
            }
            Bulletin::Inspected(result, right, judgement) => self.inspected(result, *right, judgement),
            Bulletin::Past(member, past) => self.retro(*member, past),
            Bulletin::Lost(round, member, why) => {
                let so = if ledger.manifest().profile.is_replayable() { ", the archive will not replay" } else { "" };
                self.line(&format!("the contribution of {member} to round {round} is lost{so}: {why}"));
            }
            Bulletin::OutOfReach(member) => self.line(&format!(
                "the harm that {member} did exceeds rollback.limit, but a Rewind no longer reaches any round of it"
            )),
            Bulletin::Resumed => self.line(
                "this process did not run for a while (stopped, or the disk hung): the phase begins anew, and nobody fails for it",
            ),
            Bulletin::Stopping => self.line("finishing the round, then stopping (Ctrl-C again aborts)"),
            Bulletin::Closed(root) => {
                self.duties.clone_from(duties);
                self.close(ledger, *root);
            }
        }
    }

    /// Shows whom the run waits for while it gathers.
    pub(super) fn gathering(&self, ledger: &Ledger) {
        self.progress.gathering(ledger, |role, count| {
            let folder = self.folder.display();
            // Before the first round newcomers on probation would not count.
            let founder = role == Role::Node && ledger.manifest().admission.probation > 0;
            let founder = if founder { " --founder" } else { "" };
            let uses = if count > 1 { format!(" --uses {count}") } else { String::new() };
            let key = if organiser_key(&self.folder, None).exists() { "" } else { " --organiser-key FILE" };
            Some(format!("muster invite {folder} --role {}{uses}{founder}{key}", role.word()))
        });
    }

    /// A verifier began an audit.
    fn audit(&mut self, digest: Digest, request: &AuditRequest, verifier: MemberId) {
        self.audits += 1;
        let AuditRequest { target: member, round, .. } = *request;
        self.event(&LogEvent::Audit { member, round: round.0, verifier, request: digest });
    }

    /// A verifier ended an audit.
    fn verdict(&mut self, request: Digest, leaves: usize, finding: Finding) {
        self.count(finding);
        self.event(&LogEvent::Verdict { request, leaves: leaves as u64, finding: said(finding) });
    }

    /// A verifier has recomputed the contribution of a member that did not answer.
    fn recomputed(&mut self, said: &Recomputation, verifier: MemberId) {
        self.count(said.finding);
        let (member, round, finding) = (said.target, said.round.0, self::said(said.finding));
        self.event(&LogEvent::Recomputed { member, round, verifier, finding });
    }

    fn count(&mut self, finding: Finding) {
        if finding == Finding::Pass { self.passed += 1 } else { self.guilty += 1 }
    }

    /// The rounds begin: time counts from here.
    fn begin(&mut self) {
        self.round_began = Instant::now();
        self.progress.line("everyone is here, the rounds begin");
    }

    /// The round has come so far; its event says when.
    pub(super) fn reached(&mut self, stage: &'static str) {
        self.stages.insert(stage.to_owned(), self.round_began.elapsed().as_secs_f64());
    }

    /// A round is over.
    fn round(&mut self, ledger: &Ledger, round: Round) {
        let Some(view) = ledger.round(round) else { return };
        let seconds = self.round_began.elapsed().as_secs_f64();
        self.round_began = Instant::now();
        let stages = std::mem::take(&mut self.stages);
        let manifest = ledger.manifest();
        let (loss, bytes) = (mean_loss(view), exchanged(view, ledger.layout()));
        let leaves: u64 = view.commitments().map(|(_, c)| u64::from(c.commit.leaves)).sum();
        let tokens = leaves * u64::from(manifest.windows_of_leaf()) * u64::from(manifest.model.sequence);
        let active = |role| {
            ledger.members().iter().filter(|m| m.role == role && m.standing == Standing::Active).count()
        };
        let (nodes, verifiers) = (active(Role::Node), active(Role::Verifier));
        let text = format!(
            "loss {loss:.3}{}, {:.0} tokens/s, {}, {}, {}",
            self.held_out
                .as_ref()
                .and_then(|held_out| held_out.loss)
                .map_or_else(String::new, |loss| format!(" (held out {loss:.3})")),
            tokens as f64 / seconds.max(1e-3),
            counted(nodes, "node"),
            counted(verifiers, "verifier"),
            audits(&ledger.members().iter().map(|member| member.service).sum()),
        );
        self.progress.round(u64::from(round.0) + 1, u64::from(manifest.training.rounds), &text);
        self.event(&LogEvent::Round(Box::new(RoundEvent {
            round: round.0,
            loss,
            seconds,
            bytes,
            tokens,
            stages,
            nodes: nodes as u64,
            verifiers: verifiers as u64,
            audits: self.audits,
            passed: self.passed,
            guilty: self.guilty,
            duties: shown(&self.duties),
            root: ledger.state().root(),
        })));
    }

    /// Says why nobody counted in a round, if nobody did, and for how many milliseconds the next one is held back.
    fn barren(&mut self, ledger: &Ledger, round: Round, pause: Option<u64>) {
        let view = ledger.round(round).filter(|view| view.is_barren());
        let Some(why) = view.map(|view| why_barren(ledger, view)) else { return };
        self.progress.line(&format!("nobody counted in round {round}: {why}"));
        let seconds = pause.map(|pause| pause.div_ceil(1000));
        if let Some(seconds) = seconds {
            self.progress.line(&format!(
                "the next round is held back for {seconds} s, or until a member comes, moves or connects again: see that members \
                 and this steward reach the addresses above, and have members that cannot be dialled join with --no-listen; \
                 started again, this steward goes on at once"
            ));
        }
        self.event(&LogEvent::Barren { round: round.0, why, pause: seconds });
    }

    /// A member was admitted.
    fn admit(&mut self, ledger: &Ledger, member: MemberId) {
        let Some(known) = ledger.member(&member) else { return };
        self.progress.line(&format!("admitted {} {member}", known.role.word()));
        self.event(&LogEvent::Admit { member, role: known.role.word().to_owned() });
    }

    /// A member was expelled.
    fn ban(&mut self, ban: &Ban) {
        let (culprit, finding) = (ban.culprit, ban.finding.words());
        self.progress.line(&format!(
            "banned {culprit} from round {} on: {finding} in round {}, found by {}, evidence {}",
            ban.effective, ban.round, ban.accuser, ban.evidence
        ));
        self.event(&LogEvent::Ban {
            member: culprit,
            round: ban.round.0,
            effective: ban.effective.0,
            finding: finding.to_owned(),
            evidence: ban.evidence,
            accuser: ban.accuser,
        });
    }

    /// The next round waits for an audit.
    fn held(&mut self, round: Round, case: &OpenCase) {
        let of = case.target.map_or_else(
            || format!("the coin of round {}", case.round),
            |target| format!("the audit of what {target} contributed to round {}", case.round),
        );
        let verifier = case.verifier;
        let whom = match case.waits_for {
            WaitsFor::Member => "the member has yet to answer".into(),
            WaitsFor::Verifier => format!("verifier {verifier} has yet to do it"),
            WaitsFor::Judgement => format!("what verifier {verifier} found is being examined"),
        };
        self.progress.line(&format!("round {} waits for {of}: {whom}", round.next()));
        self.event(&LogEvent::Held { round: round.0, case: case.round.0, member: case.target });
    }

    /// A round waits for something before it is spent.
    fn awaits(&mut self, round: Round, awaited: Awaited) {
        let why = match awaited {
            Awaited::Past(convict) => format!(
                "the past of {convict} is computed again, and one round later the state could not go back for it"
            ),
            Awaited::Verifier => {
                "no verifier is active: rounds wait for one, since nothing of them would be audited; start one again, or invite \
                 another one (muster invite --role verifier)"
                    .into()
            }
            Awaited::Weight => {
                "nobody has weight: rounds wait for a member that has, or for a newcomer and a verifier that can end its \
                 probation; as they are, they would train nothing"
                    .into()
            }
        };
        self.progress.line(&format!("round {round} waits: {why}"));
        self.event(&LogEvent::Waits { round: round.0, why });
    }

    /// A verifier did not do its duty in time.
    fn idle(&mut self, idle: &Idle) {
        let Idle { verifier, round } = idle;
        self.progress.line(&format!(
            "{verifier} left its duty of round {round} undone: it audits nothing until it returns"
        ));
        self.event(&LogEvent::Idle { member: *verifier, round: round.0 });
    }

    /// The organiser has closed a tree of invitations.
    fn close_tree(&mut self, member: MemberId) {
        self.progress.line(&format!(
            "the organiser closed the tree of {member}: its invitations admit nobody any more"
        ));
        self.event(&LogEvent::CloseTree { member });
    }

    /// A convict's contributions and parts of earlier rounds were recomputed.
    fn retro(&mut self, member: MemberId, past: &[PastRound]) {
        let word = |found: &Found| match found {
            Found::Right => FoundWord::Right,
            Found::False => FoundWord::False,
            Found::Unknown(_) => FoundWord::Unknown,
        };
        let (mut rounds, mut bad) = (Vec::new(), Vec::new());
        for PastRound { round, contribution, parts, harm, .. } in past {
            let whole = contribution.iter().map(|found| ("its contribution".to_owned(), found));
            let parts_of = parts.iter().map(|(part, found)| (format!("part {part}"), found));
            let mut wrong = Vec::new();
            for (what, found) in whole.chain(parts_of) {
                match found {
                    Found::Right => {}
                    Found::False => wrong.push(what),
                    Found::Unknown(why) => self.progress.line(&format!(
                        "round {round}: {what} of {member} could not be checked again: {why}"
                    )),
                }
            }
            if !wrong.is_empty() {
                let moved = harm.map(|harm| format!(", moved by {:.0} %", 100.0 * harm)).unwrap_or_default();
                bad.push(format!("{round} ({}{moved})", wrong.join(", ")));
            }
            let found = |(part, found): &(Part, Found)| PartEvent { part: part.0, found: word(found) };
            let parts = parts.iter().map(found).collect();
            let found = contribution.as_ref().map(word);
            rounds.push(PastEvent { round: round.0, found, parts, harm: *harm });
        }
        let bad = if bad.is_empty() { "none".to_owned() } else { bad.join(", ") };
        let contributions = past.iter().filter(|past| past.contribution.is_some()).count();
        let parts: usize = past.iter().map(|past| past.parts.len()).sum();
        self.progress.line(&format!(
            "{} and {} of {member} computed again; false in rounds: {bad}",
            counted(contributions as u64, "counted contribution"),
            counted(parts as u64, "part")
        ));
        self.event(&LogEvent::Retro { member, rounds });
    }

    /// The state went back.
    fn rewind(&mut self, rewind: &Rewind, next: Round) {
        self.progress.line(&format!(
            "the state goes back to that before round {}, the run goes on with round {next}; for evidence {}",
            rewind.to, rewind.evidence
        ));
        let (to, root, evidence) = (rewind.to.0, rewind.state.root(), rewind.evidence);
        self.event(&LogEvent::Rewind { to, next: next.0, root, evidence });
    }

    /// An accusation was dismissed.
    fn dismissed(&mut self, round: Round, accuser: MemberId, culprit: MemberId, why: &str) {
        self.progress.line(&format!("the accusation of {culprit} by {accuser} was dismissed: {why}"));
        let why = why.to_owned();
        self.event(&LogEvent::Dismissed { round: round.0, member: culprit, accuser, why });
    }

    /// Contributors objected to a part, and nobody was convicted: it is right, or cannot be reduced again.
    fn inspected(&mut self, result: &PartResult, right: bool, judgement: &Judgement) {
        let (round, part) = (result.round, result.part);
        let what = match judgement {
            _ if right => "it is right, the objections were unfounded".to_owned(),
            Judgement::Undecided(why) | Judgement::Malformed(why) => format!("it does not count: {why}"),
            other => format!("it does not count: {other:?}"),
        };
        self.progress.line(&format!("round {round}, part {part} was reduced again: {what}"));
        self.event(&LogEvent::Inspected { round: round.0, part: part.0, right });
    }

    /// A member came, went, or fell silent.
    fn moved(&mut self, member: MemberId, how: &str) {
        self.progress.line(&format!("{member} {how}"));
        self.event(&LogEvent::Moved { how: how.to_owned(), member });
    }

    /// The run is over.
    fn close(&mut self, ledger: &Ledger, root: Digest) {
        self.progress.finish();
        for (verifier, counts) in &self.duties {
            let own = ledger.member(verifier).map(|member| member.service).unwrap_or_default();
            let said = audits(&own);
            self.progress
                .line(&format!("{verifier}: by the records {said}; since this program began {counts}"));
        }
        self.progress.line(&format!("the run is over; final state {root:#}"));
        self.event(&LogEvent::Close { root, duties: shown(&self.duties) });
    }

    /// A state was measured on the held-out text.
    pub(super) fn measured(&mut self, measured: HeldOutLoss) {
        if let Some(loss) = measured.loss {
            self.event(&LogEvent::HeldOut { round: measured.round.0, loss });
        }
        if let Some(sample) = &measured.sample {
            self.event(sample);
        }
        self.held_out = Some(measured);
    }

    /// The last lines of a run: how good its model is, and what to do with it;
    /// `served` is what others may go on to read.
    pub(super) fn conclude(&mut self, manifest: &Manifest, served: Option<&str>) {
        if std::mem::replace(&mut self.concluded, true) {
            return;
        }
        let measured = self.held_out.as_ref().filter(|measured| measured.round.0 == manifest.training.rounds);
        if let Some(HeldOutLoss { loss: Some(loss), baselines, .. }) = measured {
            let beside = baselines.map(|[unigram, bigram]| {
                format!("; on the same text a bigram model has {bigram:.3}, a unigram model {unigram:.3}")
            });
            self.line(&format!("held-out loss {loss:.3} nats per token{}", beside.unwrap_or_default()));
        } else if manifest.model.parameters() > MEASURED {
            self.line(
                "held-out loss not measured: the model is too large for the steward to do it beside its work",
            );
        }
        let folder = self.folder.display();
        if manifest.model.decoder().is_some() {
            self.line(&format!("next: muster generate {folder} --chat"));
        }
        self.line(&format!("next: muster run export {folder} --out model/"));
        if let Some(served) = served {
            self.line(&format!("{served} are served until Ctrl-C"));
        }
    }

    /// A line for people.
    pub(super) fn line(&self, text: &str) {
        self.progress.line(text);
    }

    fn event(&mut self, event: &LogEvent) {
        let time = SystemTime::UNIX_EPOCH.elapsed().ok().map(|since| since.as_millis() as f64 / 1e3);
        if let Err(error) = self.log.write_all(event.line(time).as_bytes()) {
            // The log is for people: a run does not end for it.
            tracing::warn!("log.jsonl: {error}");
        }
    }
}

/// A finding in words; none where nothing was wrong.
fn said(finding: Finding) -> Option<String> {
    match finding {
        Finding::Pass => None,
        Finding::Guilty(kind) => Some(kind.words().to_owned()),
    }
}

/// What the ledger knows of a round in which nobody counted: how far its contributions came.
fn why_barren(ledger: &Ledger, view: &RoundView) -> String {
    let slots = || view.commitments().filter(|(_, commitment)| commitment.weight > 0).map(|(slot, _)| slot);
    let delivered = slots().filter(|slot| view.inputs().iter().any(|inputs| inputs.contains(*slot))).count();
    let (all, parts) = (slots().count(), view.parts().len());
    let mut contacts: Vec<String> = Vec::new();
    for member in (0..parts as u16).flat_map(|part| view.aggregating(Part(part))) {
        let known = ledger.member(&member).map(|member| &member.addresses);
        let contact = known
            .into_iter()
            .flatten()
            .next()
            .map(|address| format!("{member} at {}", address.escape_debug()));
        contacts.extend(contact.filter(|contact| !contacts.contains(contact)));
    }
    let who = match contacts.len() {
        0 => "nobody".to_owned(),
        more if more > SHOWN => format!("{} and {} more", contacts[..SHOWN].join(", "), more - SHOWN),
        _ => contacts.join(", "),
    };
    if !view.weighs() && view.commitments().next().is_some() {
        return format!(
            "none of the {} that committed has weight",
            counted(view.commitments().count(), "member")
        );
    }
    if view.commitments().next().is_none() {
        return "nobody that had a seat committed to anything in time".into();
    }
    if parts == 0 {
        return format!(
            "{} committed, there was nobody that could be dialled to combine their parts, and for this steward alone they are too \
             large (ROUND-39)",
            counted(all, "member")
        );
    }
    if delivered == 0 {
        return format!(
            "none of {} could deliver its parts to those that combine them: {who}",
            counted(all, "member")
        );
    }
    format!(
        "{delivered} of {} delivered, but none of {} was combined and fetched in time from {who}",
        counted(all, "member"),
        counted(parts, "part")
    )
}

/// Duties by verifier, for programs.
fn shown(duties: &BTreeMap<MemberId, Counts>) -> BTreeMap<String, DutyLine> {
    duties.iter().map(|(verifier, counts)| (format!("{verifier:#}"), counts.into())).collect()
}

/// Bytes of contributions and results that a round moves between members: each counted block goes to its aggregators
/// unless one is its author, each reduced block goes to every other seat and to the steward. Proofs are left out.
fn exchanged(view: &RoundView, layout: &Layout) -> u64 {
    let mut bytes = 0;
    let results = view.results().unwrap_or_default();
    for ((part, plan), (inputs, result)) in (0u16..).zip(view.parts()).zip(view.inputs().iter().zip(results))
    {
        let length: u64 =
            plan.blocks.iter().filter_map(|block| Some(layout.block(*block)?.range.len() as u64 * 4)).sum();
        let part = Part(part);
        let aggregators: Vec<Slot> =
            view.attempt(part).into_iter().flat_map(|attempt| view.aggregators_in(part, attempt)).collect();
        let inputs: u64 =
            aggregators.iter().map(|own| inputs.slots().filter(|slot| slot != own).count() as u64).sum();
        let seats = (0..view.seats().len() as u16).map(Slot).filter(|slot| view.computes_on(*slot, part));
        let readers = if result.is_some() { seats.count() as u64 } else { 0 };
        bytes += length * (inputs + readers);
    }
    bytes
}
