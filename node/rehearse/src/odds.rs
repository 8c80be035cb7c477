//! How soon audits at the rates of a run convict an attack, by formula: spec/model.md C3.

use std::fmt::Write;

use muster_core::manifest::Admission;
use muster_core::standing::audit_ppm;
use muster_organise::config::Settings;
use muster_organise::rates::{Rates, percent};

use super::deed::deed;
use super::lie::Lie;
use crate::attack::{Attack, Wrong};

/// An attack that escapes less often than this should have been caught.
pub(super) const CERTAIN: f64 = 1e-3;
/// Bad contributions for which the chance to escape is shown.
const SHOWN: [u32; 6] = [1, 2, 5, 10, 20, 50];

/// The rates of a run, for a number of nodes and verifiers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Odds {
    /// How one verifier audits a contribution.
    rates: Rates,
    /// Probability that a newcomer's contribution is audited, and recomputed leaves after which it halves (STAND-4).
    newcomers: (f64, u32),
    /// Probability that a block of an aggregate is reduced again.
    blocks: f64,
    verifiers: u16,
    /// Verifiers whose audits find nothing.
    sparing: u16,
    /// T_audit in seconds: how long a verifier may owe the same.
    patience: f64,
    /// Probability that another verifier re-executes a passing verdict.
    rechecked: f64,
    /// Contributions of a round.
    nodes: u32,
    /// Aggregators of each part.
    replicas: u8,
    /// First round, rounds, and how many of the last are audited by everyone.
    rounds: (u32, u32, u32),
}

/// The expectation for an attack that goes on until it is found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Expected {
    /// Bad contributions up to the one that convicts.
    pub(super) contributions: f64,
    /// The same in this run, which ends, and whose last rounds are audited by all: those that count as many as there are.
    pub(super) in_run: f64,
    /// Audits of bad contributions up to the one that convicts.
    pub(super) audits: f64,
    /// Probability that the run ends before.
    pub(super) escapes: f64,
}

/// What every run sees before it is sealed.
const AT_ONCE: Expected = Expected { contributions: 1.0, in_run: 1.0, audits: 0.0, escapes: 0.0 };

impl Expected {
    /// Whether it should be banned by the end.
    pub(super) fn certain(&self) -> bool {
        self.escapes < CERTAIN
    }
}

impl Odds {
    /// Of these settings, with attacks from a round on and none of the verifiers lying.
    pub(super) fn of(settings: &Settings, nodes: u32, verifiers: u16, from: u32) -> Self {
        let training = &settings.training;
        Self {
            rates: Rates::new(settings.audit.share, settings.leaves_of_node(nodes), settings.audit.leaves)
                .chained(settings.local.is_some()),
            newcomers: (settings.admission.newcomer_share.clamp(0.0, 1.0), settings.admission.halving),
            blocks: settings.audit.blocks.clamp(0.0, 1.0),
            verifiers,
            sparing: 0,
            patience: settings.timers.audit,
            rechecked: if verifiers > 1 { settings.audit.recheck.clamp(0.0, 1.0) } else { 0.0 },
            nodes,
            replicas: settings.aggregation.replicas,
            rounds: (from, training.rounds, settings.audit.final_rounds),
        }
    }

    /// Share of all leaves that are recomputed.
    pub(super) fn recomputed(&self) -> f64 {
        self.rates.recomputed()
    }

    /// The same with verifiers that lie.
    pub(super) fn with(self, liars: &[Lie]) -> Self {
        let sparing = liars.iter().filter(|lie| lie.spares()).count();
        Self { sparing: (sparing as u16).min(self.verifiers), ..self }
    }

    /// 1 − δ: share of the verifiers that find what there is to find. One that accuses everybody counts: it does not spare
    /// a cheat.
    fn upright(&self) -> f64 {
        f64::from(self.verifiers - self.sparing) / f64::from(self.verifiers.max(1))
    }

    /// Probability that the audit of one bad contribution, which its inspector draws with probability `share`, convicts. The
    /// inspector is drawn; that a recheck may find out one that lets everything pass, or that others take over what one
    /// leaves undone, is not counted on.
    fn convicted(&self, found: f64, share: f64) -> f64 {
        self.upright() * share * found
    }

    /// The probability that a member's contribution is audited, round by round: a newcomer's is higher, and falls with the
    /// leaves that can be expected to be recomputed by then. In the final rounds every contribution is audited.
    fn shares(&self) -> impl Iterator<Item = f64> {
        let ((newcomer, halving), (_, rounds, last)) = (self.newcomers, self.rounds);
        let drawn = self.upright() * f64::from(self.rates.drawn);
        let ppm = |share: f64| (1e6 * share) as u32;
        let admission = Admission { newcomer_ppm: ppm(newcomer), halving, ..Admission::closed(1, 1, 1) };
        let mut credit = 0.0;
        (0..rounds).map(move |round| {
            if round.saturating_add(last) >= rounds {
                return 1.0;
            }
            let newcomer = audit_ppm(&admission, 0, credit as u64);
            let share = (f64::from(newcomer) / 1e6).max(self.rates.share);
            credit += share * drawn;
            share
        })
    }

    /// `None` where there is nothing to convict.
    pub(super) fn expected(&self, attack: &Attack) -> Option<Expected> {
        let (from, rounds, _) = self.rounds;
        match attack.betrayal.wrong {
            // Two aggregators of a part differ (ROUND-25): the round itself finds it.
            Wrong::Block if self.replicas > 1 => return Some(AT_ONCE),
            // Somebody asks all the time, and one call in ten goes to two holders (CALL-10).
            Wrong::Words | Wrong::Part | Wrong::Answers => return Some(AT_ONCE),
            Wrong::Block => {
                // Only verifiers reduce drawn blocks again.
                let share = if self.verifiers > 0 { self.blocks } else { 0.0 };
                let (in_run, escapes) = tries((from..rounds).map(|_| share));
                return Some(Expected { contributions: 1.0 / share, in_run, audits: 0.0, escapes });
            }
            _ => {}
        }
        let found = attack.betrayal.wrong.found(self.rates.leaves, self.rates.drawn)?;
        let bad = |(round, _): &(u32, f64)| *round >= from && attack.betrayal.rhythm.bad(round - from);
        let bad = (0..).zip(self.shares()).filter(bad);
        let chances: Vec<f64> = bad.map(|(_, share)| self.convicted(found, share)).collect();
        let (in_run, escapes) = tries(chances.iter().copied());
        // Of a run that goes on as it is before the final rounds.
        let settled = self.shares().filter(|share| *share < 1.0).last().unwrap_or(1.0).max(self.rates.share);
        let before = chances.into_iter().take_while(|chance| *chance < self.convicted(found, 1.0));
        let (made, left) = tries(before);
        let contributions = made + left / self.convicted(found, settled);
        Some(Expected { contributions, in_run, audits: 1.0 / (self.upright() * found), escapes })
    }

    /// Probability that a verifier that lies from the first round on is not banned; none where that depends on what others
    /// do. One that accuses is convicted by the first verdict that it gives on an honest member; verifiers share the
    /// audits.
    pub(super) fn liar_escapes(&self, lie: Lie) -> Option<f64> {
        let verdict = self.rates.share / f64::from(self.verifiers.max(1));
        let contributions = self.nodes.saturating_mul(self.rounds.1);
        (lie == Lie::Accuse).then(|| (1.0 - verdict).powi(contributions.min(i32::MAX as u32) as i32))
    }

    /// The expectation for a verifier that lies, in a sentence.
    pub(super) fn liar_promise(&self, lie: Lie) -> String {
        match lie {
            Lie::Accuse => {
                "convicted by its first verdict on an honest member, which the steward re-executes".into()
            }
            Lie::Acquit if self.rechecked > 0.0 && self.sparing < self.verifiers => format!(
                "convicted after {:.1} passes of a cheat in the mean, and the cheat with it",
                1.0 / self.rechecked
            ),
            Lie::Acquit => "never convicted: nobody rechecks what it passes".into(),
            Lie::Sleep | Lie::Hunt | Lie::EarlyCoin => format!(
                "never convicted: it owes what it leaves undone, is sealed as idle after {:.0} s, and others take over",
                self.patience
            ),
        }
    }

    /// The expected harm, for people.
    pub(super) fn text(&self, attackers: &[Attack], liars: &[Lie]) -> String {
        let Self { rates: Rates { share, drawn, leaves: m, .. }, verifiers, .. } = *self;
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "What these settings promise: {} of the contributions are audited, and {} of {m} leaves recomputed in each: {} of \
             all leaves. Verifiers share the work: {verifiers}.\n",
            percent(share),
            drawn,
            percent(self.rates.recomputed())
        );
        if self.newcomers.0 > share {
            let (newcomer, halving) = self.newcomers;
            let _ = writeln!(
                text,
                "A member begins as a newcomer, audited with {}, which halves with every {halving} of its leaves that were recomputed. \
                 The table leaves this out; what is said of each attack counts it.\n",
                percent(newcomer)
            );
        }
        if self.sparing > 0 {
            let _ = writeln!(
                text,
                "Of them {} find nothing: below, no recheck finds them out, and nobody does their audits for them.\n",
                self.sparing
            );
        }
        let kinds = [("a whole contribution", Wrong::Rows, m), ("one leaf", Wrong::Row, 1)];
        let heads = SHOWN.map(|bad| format!("{bad:>7}")).concat();
        let _ = writeln!(
            text,
            "a round spoils         bad leaves until found   chance to escape {heads} bad rounds"
        );
        for (name, wrong, spoiled) in kinds {
            let once = self.convicted(wrong.found(m, drawn).unwrap_or(0.0), share);
            let escapes =
                SHOWN.map(|bad| percent((1.0 - once).powi(bad as i32))).map(|word| format!("{word:>7}"));
            let until =
                if once > 0.0 { format!("{:.1}", f64::from(spoiled) / once) } else { "no end".into() };
            let _ = writeln!(text, "{name:<23}{until:>10}{:>34}{}", "", escapes.concat());
        }
        let _ = writeln!(
            text,
            "and what else counts until a verdict takes effect, one to four rounds later in drills (spec/harm.md).\n"
        );
        let _ = writeln!(
            text,
            "Not rehearsed: admission. All nodes here are founders, with weight from the first round on; a stranger has none \
             before its probation is over (admission.*).\n"
        );
        let attackers = attackers.iter().map(|attack| (attack.name, attack.about(), self.promise(attack)));
        let liars = liars.iter().map(|lie| (lie.name(), lie.about().to_owned(), self.liar_promise(*lie)));
        let mut told: Vec<&str> = Vec::new();
        for (name, about, promise) in attackers.chain(liars) {
            // One entry for each kind, however many play it.
            if !told.contains(&name) {
                told.push(name);
                let _ = writeln!(text, "{name:<11} {}\n{:<11} {promise}", deed(&about), "");
            }
        }
        text
    }

    /// The expectation for an attack, in a sentence.
    pub(super) fn promise(&self, attack: &Attack) -> String {
        match (attack.betrayal.wrong, self.expected(attack)) {
            (Wrong::Nothing(why), _) => format!("nothing to convict: {why}"),
            (Wrong::Answers, _) => "convicted once a call goes to it and to another holder, as one in ten does".into(),
            (Wrong::Words, _) => "convicted by its own signatures, at once".into(),
            (Wrong::Block, _) if self.replicas > 1 => {
                "the other aggregator of the part signs another result; reduced again before it is sealed, it convicts at \
                 once, unless both conspire"
                    .into()
            }
            (Wrong::Part, _) => {
                "contributors object; reduced again before it is sealed, it convicts at once".into()
            }
            (wrong, Some(Expected { contributions, escapes, .. })) if contributions.is_finite() => {
                let silent =
                    if wrong == Wrong::Silence { ", once its silence is sealed (T_audit)" } else { "" };
                format!(
                    "convicted after {contributions:.1} bad contributions in the mean{silent}; escapes this run with probability {}",
                    percent(escapes)
                )
            }
            _ => "never convicted: nobody audits".into(),
        }
    }
}

/// Of tries that convict with these probabilities, one after the other: how many are made until one does, or the last one
/// is over, on average, and the probability that none does.
fn tries(convict: impl Iterator<Item = f64>) -> (f64, f64) {
    convict.fold((0.0, 1.0), |(made, left), chance| (made + left, left * (1.0 - chance)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn odds(share: f64, drawn: u8, verifiers: u16) -> Odds {
        let mut settings = Settings::default();
        (settings.audit.share, settings.audit.leaves, settings.audit.final_rounds) = (share, drawn, 2);
        (settings.training.leaves, settings.training.rounds) = (16, 30);
        settings.admission.newcomer_share = 0.0;
        Odds::of(&settings, 4, verifiers, 10)
    }

    fn expected(odds: Odds, name: &str) -> Option<Expected> {
        odds.expected(&name.parse().unwrap())
    }

    #[test]
    fn c3_holds_at_both_ends() {
        // π = 1/4, a = 1 of m = 4: ρ = 1/16; a bad leaf a round lasts 1/ρ rounds, a burst m/π leaves.
        let spread = expected(odds(0.25, 1, 1), "one-leaf").unwrap();
        assert!((spread.contributions - 16.0).abs() < 1e-9 && (spread.audits - 4.0).abs() < 1e-9);
        let all = expected(odds(0.25, 1, 1), "sign").unwrap();
        assert!((4.0 * all.contributions - 16.0).abs() < 1e-9 && (all.audits - 1.0).abs() < 1e-9);
        assert_eq!(expected(odds(0.25, 1, 2), "sign"), Some(all), "verifiers share the work");
    }

    #[test]
    fn the_last_rounds_are_audited_by_all_and_rhythms_count() {
        // Rounds 10..28 by coin, 28 and 29 by everyone.
        let spread = expected(odds(0.25, 1, 1), "one-leaf").unwrap();
        let escapes = (15.0f64 / 16.0).powi(18) * 0.75f64.powi(2);
        assert!((spread.escapes - escapes).abs() < 1e-9 && !spread.certain());
        let sign = expected(odds(0.25, 1, 1), "sign").unwrap();
        assert_eq!(sign.escapes, 0.0);
        // Three quarters of those of a round go on to the next; in round 28 the last one is found.
        let made = (0..18).map(|round| 0.75f64.powi(round)).sum::<f64>() + 0.75f64.powi(18);
        assert!((sign.in_run - made).abs() < 1e-9, "{sign:?}");
        assert_eq!(expected(odds(0.0, 1, 0), "nudge").unwrap().in_run, 20.0, "nobody audits");
        // Rounds 10, 18, 26 only.
        let slow = expected(odds(0.25, 1, 1), "slow").unwrap();
        assert!((slow.escapes - (15.0f64 / 16.0).powi(3)).abs() < 1e-9);
        let once = expected(odds(0.25, 1, 1), "burst").unwrap();
        assert!((once.escapes - 0.75).abs() < 1e-9);
        assert_eq!(expected(odds(0.25, 1, 1), "withhold"), None);
        assert!((expected(odds(0.25, 1, 1), "nudge").unwrap().contributions - 20.0).abs() < 1e-9);
        assert!(expected(odds(0.0, 1, 1), "equivocate").unwrap().certain());
        let twins = Odds { replicas: 2, ..odds(0.25, 1, 1) };
        assert_eq!(expected(twins, "nudge"), Some(AT_ONCE), "the other aggregator differs");
    }

    #[test]
    fn newcomers_are_audited_more() {
        // Audited every second time until 100 leaves are recomputed, which is after the run; then every fourth.
        let new = |halving| Odds { newcomers: (0.5, halving), ..odds(0.05, 1, 1) };
        let sign = |halving| expected(new(halving), "sign").unwrap();
        assert!((sign(100).contributions - 2.0).abs() < 1e-9, "{:?}", sign(100));
        assert!((sign(100).in_run - 2.0).abs() < 1e-4, "{:?}", sign(100));
        let shares: Vec<f64> = new(5).shares().collect();
        assert_eq!((shares[9], shares[10], shares[27], shares[28]), (0.5, 0.25, 0.25, 1.0));
        let text = new(100).text(&["sign".parse().unwrap()], &[]);
        assert!(text.contains("audited with 50 %, which halves with every 100"), "{text}");
        assert!(text.contains("after 2.0 bad contributions"), "{text}");
    }

    #[test]
    fn liars_are_convicted_by_those_whom_they_accuse_or_by_rechecks() {
        // Four contributions in each of 30 rounds; one of two verifiers audits an eighth of them.
        let escapes = odds(0.25, 1, 2).liar_escapes(Lie::Accuse).unwrap();
        assert!((escapes - (7.0f64 / 8.0).powi(120)).abs() < 1e-12);
        assert_eq!(odds(0.0, 1, 2).liar_escapes(Lie::Accuse), Some(1.0), "who audits nothing accuses nobody");
        assert_eq!(odds(0.25, 1, 2).liar_escapes(Lie::Acquit), None);
        assert!(odds(0.25, 1, 2).liar_promise(Lie::Acquit).contains("after 10.0 passes"));
        assert!(odds(0.25, 1, 1).liar_promise(Lie::Acquit).contains("nobody rechecks"));
    }

    #[test]
    fn who_lets_everything_pass_takes_its_share_of_the_audits_with_it() {
        let one = |liars: &[Lie]| odds(1.0, 1, 2).with(liars);
        let burst = |liars: &[Lie]| expected(one(liars), "burst").unwrap();
        assert_eq!((burst(&[]).escapes, burst(&[Lie::Accuse]).escapes), (0.0, 0.0));
        let halved = burst(&[Lie::Acquit]);
        assert!((halved.escapes - 0.5).abs() < 1e-12 && !halved.certain(), "{halved:?}");
        assert!((halved.contributions - 2.0).abs() < 1e-12 && (halved.audits - 2.0).abs() < 1e-12);
        // The final audit has one inspector for each contribution, too.
        let sign = expected(odds(0.25, 1, 2).with(&[Lie::Acquit]), "sign").unwrap();
        assert!((sign.escapes - 0.875f64.powi(18) * 0.25).abs() < 1e-9, "{sign:?}");
        assert_eq!(burst(&[Lie::Sleep]), halved);
        assert!(one(&[]).liar_promise(Lie::Hunt).contains("sealed as idle after"));
        // What contradicts itself, or is wrong in the aggregate, is found without these audits.
        assert_eq!(expected(one(&[Lie::Acquit]), "equivocate"), Some(AT_ONCE));
        assert_eq!(expected(one(&[Lie::Acquit]), "nudge"), expected(one(&[]), "nudge"));
        let text = one(&[Lie::Acquit]).text(&["burst".parse().unwrap()], &[Lie::Acquit]);
        assert!(text.contains("Of them 1 find nothing"), "{text}");
        assert!(text.contains("escapes this run with probability 50 %"), "{text}");
    }

    #[test]
    fn what_is_promised_is_said() {
        let attackers = ["one-leaf", "withhold", "one-leaf"].map(|name| name.parse().unwrap());
        let text = odds(0.25, 1, 1).text(&attackers, &[Lie::Accuse]);
        assert!(
            text.contains("25 % of the") && text.contains("1 of 4 leaves") && text.contains("6.2 % of all"),
            "{text}"
        );
        assert!(text.contains("after 16.0 bad contributions"), "{text}");
        assert!(text.contains("nothing to convict") && text.contains("Not rehearsed: admission"), "{text}");
        let entries =
            ["\none-leaf    ", "\nwithhold    ", "\naccuse      "].map(|name| text.matches(name).count());
        assert_eq!(entries, [1, 1, 1], "{text}");
        assert!(text.contains("accuse      inspects as it should, finds every leaf wrong"), "{text}");
        assert!(odds(0.0, 1, 1).text(&attackers, &[]).contains("never convicted"));
        assert_eq!([0.0, 1e-9, 0.0123, 0.5].map(percent), ["0 %", "<0.1 %", "1.2 %", "50 %"]);
    }
}
