//! What a run's settings promise, before anybody takes part: how far the worst attacks come, and what silence costs.

use std::fmt::Write;

use muster_core::limits;
use muster_core::manifest::{Manifest, Mode};
use muster_core::regime::Regime;
use muster_view::words::counted;

use crate::estimate::worn;
use crate::plan::moved::too_much;
use crate::rates::{Rates, Wrong, percent};

/// A whole, in the shares of a manifest.
const MILLION: f64 = 1e6;
/// Probability up to which nobody is warned that an archive may not replay.
const RARE: f64 = 0.01;

/// Attacks that place the most: name, what they do in a round, what is wrong then, and whether all leaves are.
const WORST: [(&str, &str, Wrong, bool); 4] = [
    ("one-leaf", "one bad leaf, each round", Wrong::Row, false),
    ("spread", "true leaves and another sum, each round", Wrong::Sum, true),
    ("burst", "all leaves bad in one round, then gone", Wrong::Rows, true),
    ("fit", "another sum and one fitted row, each round", Wrong::Row, true),
];

/// The promise, for people, when as many nodes take part as the run begins with.
pub fn prospect(manifest: &Manifest) -> String {
    // As many nodes as the run begins with: nobody knows how many will come.
    let (audit, nodes) = (&manifest.audit, u32::from(manifest.admission.start_nodes).max(1));
    let leaves = manifest.leaves_of_seat(nodes);
    let rates = Rates::new(f64::from(audit.share_ppm) / MILLION, leaves, audit.leaves);
    let rates = rates.chained(Regime::of(manifest).recomputes_chains());
    let mut text = String::new();
    // Writing to a string does not fail.
    if let Some(local) = manifest.local() {
        let _ = writeln!(
            text,
            "A leaf is here a segment of {}, which verifiers recompute from the start of the round.",
            counted(local.segment, "step")
        );
    }
    let _ = write_worst(&rates, nodes, &mut text);
    let _ = write_silence(manifest, &mut text);
    text
}

fn write_worst(rates: &Rates, nodes: u32, text: &mut String) -> std::fmt::Result {
    let Rates { share, leaves, drawn, .. } = *rates;
    writeln!(
        text,
        "With {}, {} each: verifiers audit {} of the contributions and recompute {drawn} of {} in each, {} of all \
         leaves.\nWhat a cheat places until an audit convicts it, on average (C3 in spec/model.md):\n",
        counted(nodes, "node"),
        counted(leaves, "leaf"),
        percent(share),
        counted(leaves, "leaf"),
        percent(rates.recomputed())
    )?;
    writeln!(text, "  {:<10} {:<44} {:>10} {:>8}", "attack", "", "bad leaves", "rounds")?;
    for (name, does, wrong, all) in WORST {
        let once = rates.convicts(wrong);
        let rounds = 1.0 / once;
        let bad = rounds * f64::from(if all { leaves } else { 1 });
        let shown = |value: f64| if value.is_finite() { format!("{value:.0}") } else { "no end".into() };
        let rounds = if name == "burst" { "1".into() } else { shown(rounds) };
        writeln!(text, "  {name:<10} {does:<44} {:>10} {rounds:>8}", shown(bad))?;
    }
    writeln!(text, "\nWhat counts until verdict and ban take effect, some rounds later, comes on top.")
}

fn write_silence(manifest: &Manifest, text: &mut String) -> std::fmt::Result {
    let timers = &manifest.timers;
    let seconds = |milliseconds: u32| f64::from(milliseconds) / 1000.0;
    writeln!(
        text,
        "A member that says nothing holds up a round for {} s until commitments, {} s until deliveries or {} s until results are \
         sealed without it, in at most {} of {}. An audit that it does not answer is sealed as its silence after {} s at the \
         latest: it has no seat until it answers, or until the round is forgotten, {} later; verifiers recompute all its \
         leaves meanwhile.",
        seconds(timers.commit),
        seconds(timers.part),
        seconds(timers.result),
        u32::from(limits::FAILURES) + manifest.most_rounds() / limits::FORGIVING,
        counted(manifest.most_rounds(), "round"),
        seconds(timers.audit),
        counted(manifest.retention.contributions.max(1), "round")
    )
}

/// What an organiser should know of a run before it begins, and whoever hosts it: too few verifiers, invitations that cost
/// nothing, rounds that are forgotten soon, a text that is read too often, lines that cannot keep up.
pub fn warnings(manifest: &Manifest) -> Vec<String> {
    let said = too_few(manifest).into_iter().chain(unpriced(manifest)).map(str::to_owned);
    let said = said.chain(uninvited(manifest)).chain(forgetting(manifest)).chain(worn(manifest));
    said.chain(too_much(manifest)).collect()
}

/// What is wrong where a run waits for more nodes than may come without an invitation before its first round (STAND-8).
fn uninvited(manifest: &Manifest) -> Option<String> {
    let admission = &manifest.admission;
    let (nodes, most) = (u32::from(admission.start_nodes), u32::from(admission.most_members));
    let all = (3 * most).div_ceil(4).saturating_sub(admission.start_verifiers.into());
    let places = all.min(most.div_ceil(2)).min(admission.per_round.into());
    (admission.mode == Mode::Open && nodes > places).then(|| {
        format!(
            "the run begins with {}, of which {places} at most may come without an invitation: invite the others, or \
             set a smaller admission.start_nodes, or a larger admission.per_round or admission.most_members",
            counted(nodes, "node")
        )
    })
}

/// What is wrong where members bring in others and no probation prices them (STAND-5).
fn unpriced(manifest: &Manifest) -> Option<&'static str> {
    let admission = &manifest.admission;
    (admission.member_invites > 0 && admission.probation == 0).then_some(
        "members may bring in others, who have weight at once: one member can fill three quarters of the run with its own keys, \
         and then has most of the weight. Set admission.probation, or admission.member_invites = 0",
    )
}

/// What is wrong where a run begins with too few verifiers.
fn too_few(manifest: &Manifest) -> Vec<&'static str> {
    let admission = &manifest.admission;
    let few = match admission.start_verifiers {
        0 => Some(
            "the run begins without a verifier, and nothing is audited before one has come: no bad leaf is found. Two are \
             recommended: admission.start_verifiers = 2",
        ),
        1 => Some(
            "the run begins with one verifier: nobody rechecks what it passes, nobody takes over when it is away, and rounds wait \
             until it is back. Two are recommended: admission.start_verifiers = 2",
        ),
        _ => None,
    };
    // STAND-2: a share of each probation then falls to nobody, once one of them is gone or banned.
    let probation = admission.probation > 0 && admission.start_verifiers <= u16::from(admission.vouchers);
    let probation = probation.then_some(
        "a probation takes every verifier that the run begins with: once one of them is gone or banned, no newcomer earns weight \
         before another one has come. Set admission.start_verifiers above admission.vouchers",
    );
    few.into_iter().chain(probation).collect()
}

/// What an organiser should know of a run whose rounds are forgotten soon: a cheat whose first audit comes later than this
/// leaves bad contributions that nobody can show (C7). None where that happens in one of a hundred cases at most.
fn forgetting(manifest: &Manifest) -> Option<String> {
    let share = f64::from(manifest.audit.share_ppm) / MILLION;
    let rounds = manifest.retention.contributions.saturating_sub(manifest.lasting_rounds());
    let chance = (1.0 - share).powi(rounds.min(i32::MAX as u32) as i32);
    // Where nothing is audited, that is the thing to say.
    (share > 0.0 && manifest.profile.is_replayable() && chance > RARE).then(|| {
        format!(
            "with probability {} none of a cheat's first {} is audited, and the archive of the run then lacks \
             what it would take to replay it. A larger audit.share, or retention.contributions, lowers that",
            percent(chance),
            counted(rounds, "contribution")
        )
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use muster_core::ids::{Digest, MemberId};
    use muster_core::manifest::{Data, Start, Tokeniser};

    use super::*;
    use crate::config::admission::ModeSetting;
    use crate::config::local::Local;
    use crate::config::preset::Preset;
    use crate::config::{Makers, Settings};
    use crate::plan::moved::{Moved, needed};

    fn manifest(change: impl FnOnce(&mut Settings)) -> Manifest {
        let mut settings = Settings::default();
        change(&mut settings);
        let makers = Makers { organiser: MemberId([1; 32]), steward: MemberId([2; 32]), nonce: [3; 16] };
        let data = Data {
            root: Digest::default(),
            bytes: 1 << 20,
            held_out_root: Digest::default(),
            held_out_bytes: 1 << 10,
            tokeniser: Tokeniser::Bytes,
            start: Start::Drawn,
            router: None,
        };
        settings.manifest(&makers, data).unwrap()
    }

    #[test]
    fn c3_the_worst_attacks_are_promised_as_the_model_says() {
        let text = prospect(&manifest(|settings| {
            (settings.audit.share, settings.audit.leaves) = (0.5, 1);
            (settings.training.leaves, settings.training.rounds) = (64, 640);
            settings.admission.start_nodes = 4;
        }));
        // π = 1/2, m = 16, a = 2: ρ = 1/16; a fitted row stands for all 16 leaves.
        let row = |name: &str| {
            let line = text.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
            line.split_whitespace().rev().take(2).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(row("one-leaf"), ["16", "16"], "{text}");
        assert_eq!(row("spread"), ["2", "32"]);
        assert_eq!(row("burst"), ["1", "32"]);
        assert_eq!(row("fit"), ["16", "256"]);
        assert!(text.contains("in at most 17 of 640 rounds"), "{text}");
        let nobody = prospect(&manifest(|settings| settings.audit.share = 0.0));
        assert!(nobody.contains("no end"), "{nobody}");
    }

    #[test]
    fn local_8_what_recomputing_segments_costs_is_said() {
        let text = prospect(&manifest(|settings| settings.local = Some(Local::default())));
        // π = 1/2, m = 8, a = 1: 9/2 of 8 segments are computed for one that is drawn.
        assert!(text.contains("a segment of 4 steps") && text.contains("28 % of all leaves"), "{text}");
    }

    #[test]
    fn fewer_than_two_verifiers_are_warned_of() {
        let warned = |verifiers| {
            too_few(&manifest(|settings| settings.admission.start_verifiers = verifiers)).join(" ")
        };
        assert!(warned(0).contains("nothing is audited"));
        assert!(warned(1).contains("nobody rechecks"));
        assert_eq!(warned(2), "");
    }

    #[test]
    fn stand_5_invitations_by_members_without_a_probation_are_warned_of() {
        let warned = |invites, probation| {
            unpriced(&manifest(|settings| {
                (settings.admission.member_invites, settings.admission.probation) = (invites, probation);
            }))
        };
        assert!(warned(1, 0).is_some_and(|said| said.contains("Set admission.probation")));
        assert_eq!((warned(0, 0), warned(1, 100)), (None, None));
    }

    #[test]
    fn stand_8_an_open_run_that_strangers_alone_cannot_begin_is_warned_of() {
        let warned = |mode, nodes, most| {
            uninvited(&manifest(|settings| {
                let admission = &mut settings.admission;
                (admission.mode, admission.start_nodes, admission.most_members) = (mode, nodes, most);
                (admission.start_verifiers, admission.probation) = (2, 100);
            }))
        };
        assert_eq!(warned(ModeSetting::Invited, 9, 12), None);
        assert_eq!((warned(ModeSetting::Open, 6, 12), warned(ModeSetting::Open, 16, 256)), (None, None));
        assert!(warned(ModeSetting::Open, 7, 12).is_some_and(|said| said.contains("of which 6 at most")));
        assert!(warned(ModeSetting::Open, 17, 256).is_some_and(|said| said.contains("of which 16 at most")));
    }

    /// 20 million parameters, of about 1.7 bytes each.
    fn large(settings: &mut Settings) {
        (settings.model.width, settings.model.hidden, settings.model.layers) = (512, 1376, 6);
    }

    #[test]
    fn timers_last_for_as_long_as_the_slowest_line_needs() {
        let timers = |line: f64, change: &dyn Fn(&mut Settings)| {
            let made = manifest(|settings| {
                large(settings);
                (settings.timers.line, settings.timers.result) = (line, 100.0);
                change(settings);
            });
            assert!(line == 0.0 || Moved::of(&made).least(&made) <= line * 1.001, "{line}");
            made.timers
        };
        let plain = |_: &mut Settings| {};
        assert_eq!(timers(0.0, &plain).part, 30_000);
        assert_eq!(timers(1000.0, &plain).part, 30_000, "it is never shortened");
        let (slow, slower) = (timers(4.0, &plain), timers(2.0, &plain));
        assert!(slow.part > 60_000 && slow.part.abs_diff(slower.part / 2) <= 1, "{slow:?} {slower:?}");
        assert_eq!((slow.commit, slow.audit, slow.result), (30_000, 30_000, 100_000));
        let twice = timers(4.0, &|settings| settings.aggregation.replicas = 2);
        assert!(twice.part.abs_diff(2 * slow.part) <= 1);
    }

    #[test]
    fn lines_that_cannot_keep_up_are_warned_of() {
        let warned = |line: f64| {
            let made = manifest(|settings| {
                large(settings);
                settings.timers.line = line;
            });
            (warnings(&made).join(" ").contains("does not keep up"), needed(&made))
        };
        let (any, of_homes) = (warned(0.0), warned(10.0));
        assert!(any.0 && !of_homes.0 && !warned(4.0).0, "{any:?} {of_homes:?}");
        assert!(of_homes.1.contains("at least 10.0 Mbit/s") && of_homes.1.contains("MB"), "{of_homes:?}");
        for preset in [Preset::Tiny, Preset::Small, Preset::Base] {
            let settings = Settings::parse(Path::new("run.toml"), &preset.text(256)).unwrap();
            assert_eq!(too_much(&manifest(|own| *own = settings)), None, "{preset:?}");
        }
    }

    #[test]
    fn a_probation_that_takes_all_verifiers_is_warned_of() {
        let warned = |verifiers| {
            let of = |settings: &mut Settings| {
                (settings.admission.probation, settings.admission.vouchers) = (100, 2);
                settings.admission.start_verifiers = verifiers;
            };
            too_few(&manifest(of)).join(" ")
        };
        assert!(warned(1).contains("nobody rechecks") && warned(1).contains("no newcomer earns weight"));
        assert!(warned(2).contains("no newcomer earns weight"));
        assert_eq!(warned(3), "");
    }

    #[test]
    fn c7_settings_with_which_a_cheat_s_first_rounds_may_be_forgotten_are_warned_of() {
        let forgetful = |share: f64, kept: u32| {
            manifest(|settings| {
                settings.audit.share = share;
                (settings.retention.contributions, settings.retention.states) = (kept, 16);
            })
        };
        let warned = |share: f64, kept: u32| forgetting(&forgetful(share, kept));
        // `host` says them as well, of a run that somebody else may have made.
        assert!(warnings(&forgetful(0.1, 16)).iter().any(|warning| warning.contains("28 %")));
        // 0.9¹² = 28 %, and 0.5² = 25 %: of four rounds two have gone by before an audit lasts.
        assert!(warned(0.1, 16).unwrap().contains("28 %"));
        assert!(warned(0.5, 4).unwrap().contains("first 2 contributions"), "{:?}", warned(0.5, 4));
        assert_eq!((warned(0.5, 16), warned(0.1, 64)), (None, None));
        for preset in [Preset::Tiny, Preset::Small, Preset::Base] {
            let settings = Settings::parse(Path::new("run.toml"), &preset.text(256)).unwrap();
            assert_eq!(forgetting(&manifest(|own| *own = settings)), None, "{preset:?}");
        }
    }
}
