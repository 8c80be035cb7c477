//! The outcome of a rehearsal, for programs: `report.json`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use muster_core::ids::{Digest, MemberId};
use muster_core::messages::record::{Ban, Body};
use muster_replica::archive::{Archive, Replayed};
use muster_replica::exit::{Failure, Outcome};
use muster_store::dataset::unigram_bigram;
use muster_view::story::DutyLine;
use serde::{Deserialize, Serialize};

use super::cast::{Character, Player};
use super::lie::Lie;
use super::live::{Live, RewindFact, RoundFact};
use super::odds::{CERTAIN, Odds};
use super::rehearsal::Rehearsal;
use crate::attack::Attack;

/// What `muster join` and the verifier write in their directories when the run is over.
const RESULT: &str = "result.json";

/// The report.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Facts {
    /// The run.
    pub(super) run: String,
    /// Rounds in order.
    pub(super) rounds: Vec<RoundFact>,
    /// Round in which the attackers began.
    pub(super) attacked_from: u32,
    /// The steward, then the members.
    pub(super) members: Vec<MemberFact>,
    /// Bans in order.
    pub(super) bans: Vec<BanFact>,
    /// Times that the state went back.
    pub(super) rewinds: Vec<RewindFact>,
    /// False contributions that counted, those of rounds that were taken back included.
    pub(super) cheating: Vec<CheatFact>,
    /// Share of the run's parameters that a node holds.
    pub(super) held_parameters: f64,
    /// Loss on the held-out text at the end, in nats per token.
    pub(super) held_out_loss: Option<f64>,
    /// What simple models make of the same text.
    pub(super) baselines: Baselines,
    /// Root of the final state, as sealed and, unless the replay stopped, as replayed.
    pub(super) final_state_root: String,
    /// Where the replay stopped and why, if it did.
    pub(super) replay_stopped: Option<String>,
    /// From the first record to the last, processes included.
    pub(super) run_seconds: f64,
    /// All in all.
    pub(super) seconds: f64,
}

/// A member.
#[derive(Clone, Debug, Serialize)]
pub(super) struct MemberFact {
    /// Its id.
    pub(super) id: String,
    /// What people call it.
    pub(super) name: String,
    /// steward, node or verifier.
    pub(super) role: &'static str,
    /// Whether it was told to be.
    pub(super) honest: bool,
    /// What it played, if it cheated.
    pub(super) attack: Option<AttackFact>,
    /// Leaves of it that counted.
    pub(super) leaves_counted: u64,
    /// A verifier's duties.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) duty: Option<DutyLine>,
    /// The row of experts that it held last, in a run of several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) row: Option<u16>,
    /// How often it was sealed as idle.
    pub(super) idled: u32,
    /// The state that its process ended with; none for one that was thrown out.
    pub(super) final_state_root: Option<String>,
}

/// What an attacker played.
#[derive(Clone, Debug, Serialize)]
pub(super) struct AttackFact {
    /// The name of the attack.
    pub(super) name: &'static str,
    /// The expectation, in words.
    pub(super) promise: String,
    /// Its bad contributions, up to the one that convicted it; none when it was not, or of a verifier. Where verdicts lag, several are
    /// proved before the first ban, and any of them may be the one that it names.
    pub(super) contributions: Option<usize>,
    /// Audits of those; of all its bad contributions when it was not convicted.
    pub(super) audits: usize,
    /// Expected number; `None` where no audit convicts.
    pub(super) audits_expected: Option<f64>,
    /// Bad contributions up to the one that convicts, to be expected.
    pub(super) contributions_expected: Option<f64>,
    /// Bad contributions that it made: up to the one that convicted it, or to the end of the run; none of a verifier.
    pub(super) made: Option<usize>,
    /// The same, to be expected of this run.
    pub(super) made_expected: Option<f64>,
    /// Probability that it escaped; `None` where there is nothing to convict, or of a verifier that no honest member need
    /// convict.
    pub(super) escape_probability: Option<f64>,
    /// Whether it should have been banned by the end.
    pub(super) convictable: bool,
    /// Whether it is a verifier that leaves its duty undone, of which no evidence comes.
    pub(super) idles: bool,
}

/// An expulsion.
#[derive(Clone, Debug, Serialize)]
pub(super) struct BanFact {
    /// Who.
    pub(super) id: String,
    /// Round of the offence.
    pub(super) round: u32,
    /// First round without it.
    pub(super) effective: u32,
    /// What was found.
    pub(super) finding: &'static str,
    /// Name of the evidence.
    pub(super) evidence: String,
    /// Who found it.
    pub(super) verifier: String,
}

/// A false contribution that counted.
#[derive(Clone, Debug, Serialize)]
pub(super) struct CheatFact {
    /// Whose.
    pub(super) id: String,
    /// When.
    pub(super) round: u32,
    /// The share of it that the robust rule let through; 1 is all.
    pub(super) factor: f64,
}

/// Losses of simple models, in nats per token.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Baselines {
    /// By the frequency of a byte.
    pub(super) unigram: f64,
    /// By its frequency after the byte before it.
    pub(super) bigram: f64,
}

/// What was seen from outside.
pub(super) struct Observed<'a> {
    pub(super) live: Live,
    pub(super) players: &'a [Player],
    pub(super) run_seconds: f64,
    pub(super) seconds: f64,
}

/// What a member wrote down when the run was over.
#[derive(Deserialize)]
struct FinalState {
    final_state_root: String,
}

/// What stands for a replay where there is a tolerance (TOL-11).
pub(super) const UNREPLAYED: &str = "not replayed, because leaves of its profile have no defined bits";

impl Facts {
    /// Gathers the facts from the archive, its replay and the members.
    ///
    /// # Errors
    /// [`Failure`] when a member left no id, or the archive no end.
    pub(super) fn gather(
        archive: &Archive,
        replayed: Result<Replayed, String>,
        observed: Observed<'_>,
        rehearsal: &Rehearsal,
    ) -> Outcome<Self> {
        let (replayed, replay_stopped) = match replayed {
            Ok(replayed) => (replayed, None),
            Err(what) => (Replayed::default(), Some(what)),
        };
        let SealedFacts { bans, root: sealed, rows } = SealedFacts::of(archive);
        let mut members = vec![MemberFact::steward(archive.manifest.steward, sealed)];
        let odds = rehearsal.odds()?;
        let rounds = (rehearsal.from, rehearsal.rounds.saturating_sub(1));
        for player in observed.players {
            let mut member = MemberFact::of(player, &replayed.leaves, &observed.live.duties)?;
            member.row = rows.get(&member.id).copied();
            member.idled = observed.live.idles.get(&member.id).copied().unwrap_or(0);
            let convicted = bans.iter().find(|ban| ban.id == member.id).map(|ban| ban.round);
            member.attack = match player.character {
                Character::Attacker(attack) => {
                    let audits = observed.live.audits.iter().filter(|(id, _)| *id == member.id);
                    let audits = audits.map(|(_, round)| *round);
                    Some(AttackFact::of(&attack, &odds, rounds, convicted, audits))
                }
                Character::Liar(lie) => Some(AttackFact::of_liar(lie, &odds)),
                Character::Node | Character::Verifier => None,
            };
            members.push(member);
        }
        let cheating = replayed.bad.iter().map(|bad| CheatFact {
            id: format!("{:#}", bad.member),
            round: bad.round.0,
            factor: bad.factor.unwrap_or(1.0),
        });
        let model = &archive.manifest.model;
        let (unigram, bigram) = unigram_bigram(&archive.dataset)?;
        Ok(Self {
            run: format!("{:#}", archive.manifest.run()),
            rounds: observed.live.rounds,
            attacked_from: rehearsal.from,
            members,
            bans,
            rewinds: observed.live.rewinds,
            cheating: cheating.collect(),
            held_parameters: model.parameters() as f64 / model.all_parameters().max(1) as f64,
            held_out_loss: replayed.held_out_loss,
            baselines: Baselines { unigram, bigram },
            final_state_root: match (&replay_stopped, sealed) {
                // The steward's word, where no replay confirms it.
                (Some(_), Some(root)) => format!("{root:#}"),
                _ => format!("{:#}", replayed.root),
            },
            replay_stopped,
            run_seconds: observed.run_seconds,
            seconds: observed.seconds,
        })
    }

    /// Writes the report.
    ///
    /// # Errors
    /// [`Failure`] naming the file.
    pub(super) fn save(&self, path: &Path) -> Outcome<()> {
        let failed =
            |why: String| Failure::environment(format!("{}: cannot be written ({why})", path.display()));
        let text = serde_json::to_string_pretty(self).map_err(|error| failed(error.to_string()))?;
        fs::write(path, text + "\n").map_err(|error| failed(error.to_string()))
    }

    /// Its expulsion, if it was banned.
    pub(super) fn ban(&self, member: &MemberFact) -> Option<&BanFact> {
        self.bans.iter().find(|ban| ban.id == member.id)
    }

    /// Whether a round was taken back: what counted in it is in no state any more.
    pub(super) fn taken_back(&self, round: u32) -> bool {
        self.rewinds.iter().any(|rewind| (rewind.to..rewind.next).contains(&round))
    }

    /// What people call a member.
    pub(super) fn name(&self, id: &str) -> String {
        let member = self.members.iter().find(|member| member.id == id);
        member.map_or_else(|| id.chars().take(16).collect(), |member| member.name.clone())
    }
}

impl AttackFact {
    fn of(
        attack: &Attack,
        odds: &Odds,
        (from, last): (u32, u32),
        convicted: Option<u32>,
        audits: impl Iterator<Item = u32>,
    ) -> Self {
        let bad = |round: u32| round >= from && attack.betrayal.rhythm.bad(round - from);
        // What a cheat did honestly, or after the round that convicts it, says nothing about the odds.
        let audits = audits.filter(|round| bad(*round) && convicted.is_none_or(|last| *round <= last));
        let expected = odds.expected(attack);
        Self {
            name: attack.name,
            promise: odds.promise(attack),
            contributions: convicted.map(|last| (from..=last).filter(|round| bad(*round)).count()),
            audits: audits.count(),
            audits_expected: expected.map(|expected| expected.audits),
            contributions_expected: expected.map(|expected| expected.contributions),
            made: Some((from..=convicted.unwrap_or(last)).filter(|round| bad(*round)).count()),
            made_expected: expected.map(|expected| expected.in_run),
            escape_probability: expected.map(|expected| expected.escapes),
            convictable: expected.is_some_and(|expected| expected.certain()),
            idles: false,
        }
    }
}

impl AttackFact {
    /// A liar spoils no round: nothing is counted of it.
    fn of_liar(lie: Lie, odds: &Odds) -> Self {
        let escapes = odds.liar_escapes(lie);
        Self {
            name: lie.name(),
            promise: odds.liar_promise(lie),
            contributions: None,
            audits: 0,
            audits_expected: None,
            contributions_expected: None,
            made: None,
            made_expected: None,
            escape_probability: escapes,
            convictable: escapes.is_some_and(|escapes| escapes < CERTAIN),
            idles: lie.idles(),
        }
    }
}

impl BanFact {
    fn of(ban: &Ban) -> Self {
        Self {
            id: format!("{:#}", ban.culprit),
            round: ban.round.0,
            effective: ban.effective.0,
            finding: ban.finding.words(),
            evidence: format!("{:#}", ban.evidence),
            verifier: format!("{:#}", ban.accuser),
        }
    }
}

/// What the ledger says.
#[derive(Default)]
struct SealedFacts {
    /// Bans in order.
    bans: Vec<BanFact>,
    /// The root of the final state.
    root: Option<Digest>,
    /// The rows of members, by id, where the state has several.
    rows: BTreeMap<String, u16>,
}

impl SealedFacts {
    fn of(archive: &Archive) -> Self {
        let run = archive.manifest.run();
        let mut facts = Self::default();
        let mut several = archive.manifest.model.rows_after(0) > 1;
        for record in archive.records.iter().filter_map(|signed| signed.verify(run).ok()) {
            let seats = match &record.body {
                Body::Ban(ban) => {
                    facts.bans.push(BanFact::of(ban));
                    continue;
                }
                Body::Close(last) => {
                    facts.root = Some(*last);
                    continue;
                }
                Body::Rewind(rewind) => {
                    several = rewind.state.rows() > 1;
                    continue;
                }
                Body::Outcome(outcome) => {
                    several = outcome.state.rows() > 1;
                    &outcome.seats
                }
                Body::Begin(seats) => seats,
                _ => continue,
            };
            let seats = seats.iter().filter(|_| several);
            facts.rows.extend(seats.map(|seat| (format!("{:#}", seat.member), seat.row.0)));
        }
        facts
    }
}

impl MemberFact {
    fn steward(id: MemberId, root: Option<Digest>) -> Self {
        Self {
            id: format!("{id:#}"),
            name: "steward".into(),
            role: "steward",
            honest: true,
            attack: None,
            leaves_counted: 0,
            duty: None,
            row: None,
            idled: 0,
            final_state_root: root.map(|root| format!("{root:#}")),
        }
    }

    fn of(
        player: &Player,
        leaves: &BTreeMap<MemberId, u64>,
        duties: &BTreeMap<String, DutyLine>,
    ) -> Outcome<Self> {
        let id = player.id().ok_or_else(|| {
            Failure::environment(format!("{}: {} has left no key there", player.home.display(), player.name))
        })?;
        let ending = fs::read(player.home.join(RESULT)).ok();
        let ending: Option<FinalState> = ending.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        Ok(Self {
            id: format!("{id:#}"),
            name: player.name.clone(),
            role: player.character.role().word(),
            honest: player.character.honest(),
            attack: None,
            leaves_counted: leaves.get(&id).copied().unwrap_or(0),
            duty: duties.get(&format!("{id:#}")).copied(),
            row: None,
            idled: 0,
            final_state_root: ending.map(|ending| ending.final_state_root),
        })
    }
}
