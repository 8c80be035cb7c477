//! What a drill's settings caught, beside what they could be expected to catch.

use std::fmt::Write;

use muster_organise::rates::percent;
use muster_replica::exit::Outcome;
use muster_view::words::counted;

use super::account::{honest_wronged, verdict};
use super::facts::{AttackFact, CheatFact, Facts, MemberFact, UNREPLAYED};

/// Why a verifier that lets everything pass is still there: it is convicted by a recheck of a false verdict, or not at all.
const NOT_RECHECKED: &str = "no recheck has proved a verdict false";

/// A line for each attacker, and what the attacks did to the loss.
pub(super) fn table(facts: &Facts) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write_attackers(facts, &mut text);
    let _ = write_harm(facts, &mut text);
    text
}

fn attackers(facts: &Facts) -> impl Iterator<Item = (&MemberFact, &AttackFact)> {
    facts.members.iter().filter_map(|member| Some((member, member.attack.as_ref()?)))
}

fn write_attackers(facts: &Facts, text: &mut String) -> std::fmt::Result {
    if attackers(facts).next().is_none() {
        return Ok(());
    }
    writeln!(
        text,
        "\n{:<13} {:<8} {:<15} {:>16} {:>16} {:>9}  the rule left",
        "attacker", "banned", "for", "bad rounds (exp)", "audits (exp)", "counted"
    )?;
    for (member, attack) in attackers(facts) {
        let cheats = facts.cheating.iter().filter(|cheat| cheat.id == member.id);
        let (back, stayed): (Vec<&CheatFact>, _) = cheats.partition(|cheat| facts.taken_back(cheat.round));
        let counted = match back.len() {
            0 => stayed.len().to_string(),
            back => format!("{}, -{back}", stayed.len()),
        };
        let cheats: Vec<f64> = back.into_iter().chain(stayed).map(|cheat| cheat.factor).collect();
        let left = 100.0 * cheats.iter().sum::<f64>() / cheats.len().max(1) as f64;
        let left = if cheats.is_empty() { "-".into() } else { format!("{left:.0} %") };
        let Some(ban) = facts.ban(member) else {
            writeln!(text, "{:<13} {:<8} {}", member.name, "no", unbanned(member, attack))?;
            continue;
        };
        let beside = |found: usize, expected: Option<f64>| match expected {
            Some(expected) => format!("{found} ({expected:.1})"),
            None if member.role == "node" => format!("{found} (-)"),
            None => "-".into(),
        };
        writeln!(
            text,
            "{:<13} {:<8} {:<15} {:>16} {:>16} {:>9}  {left}",
            member.name,
            format!("from {}", ban.effective),
            ban.finding,
            beside(attack.contributions.unwrap_or(0), attack.contributions_expected),
            beside(attack.audits, attack.audits_expected),
            counted,
        )?;
    }
    if !facts.rewinds.is_empty() {
        writeln!(text, "(counted: after the minus what a Rewind took back)")?;
    }
    Ok(())
}

/// Why an attacker was not banned.
fn unbanned(member: &MemberFact, attack: &AttackFact) -> String {
    match attack.escape_probability {
        None if attack.idles => {
            format!("was sealed as idle {} ({})", counted(member.idled as u64, "time"), attack.promise)
        }
        None if member.role == "verifier" => format!("{NOT_RECHECKED} ({})", attack.promise),
        None => attack.promise.clone(),
        Some(escapes) if attack.convictable => {
            format!("got away, which should happen with probability {}", percent(escapes))
        }
        Some(escapes) => format!(
            "got away after {}: these settings let it with probability {}; a replay shows it",
            counted(attack.audits as u64, "audit"),
            percent(escapes)
        ),
    }
}

fn write_harm(facts: &Facts, text: &mut String) -> std::fmt::Result {
    let loss = |round: u32| facts.rounds.iter().find(|fact| fact.round == round).map(|fact| fact.loss);
    let from = facts.attacked_from;
    let over = facts.bans.iter().map(|ban| ban.effective).max().filter(|_| {
        attackers(facts)
            .all(|(member, attack)| attack.escape_probability.is_none() || facts.ban(member).is_some())
    });
    let hit =
        facts.rounds.iter().filter(|fact| fact.round > from && over.is_none_or(|over| fact.round <= over));
    let worst = hit.map(|fact| fact.loss).fold(f64::NEG_INFINITY, f64::max);
    if let (Some(before), Some(last)) = (loss(from), facts.rounds.last()) {
        writeln!(
            text,
            "\ntraining loss   {before:.3} when the attacks began, {worst:.3} at worst while they counted, {:.3} in the last round",
            last.loss
        )?;
    }
    let honest = facts.members.iter().filter(|member| member.honest && facts.ban(member).is_some()).count();
    writeln!(text, "honest members banned: {honest}")
}

/// One sentence, once everything was checked.
pub(super) fn conclusion(facts: &Facts) -> String {
    let banned = attackers(facts).filter(|(member, _)| facts.ban(member).is_some()).count();
    let undecided = |role: &str, idles: bool| {
        let still_there = attackers(facts).filter(|(member, attack)| {
            let unbanned = attack.escape_probability.is_none() && facts.ban(member).is_none();
            unbanned && member.role == role && attack.idles == idles
        });
        still_there.count()
    };
    let (harmless, liars, idle) =
        (undecided("node", false), undecided("verifier", false), undecided("verifier", true));
    let all = attackers(facts).count();
    let mut text = format!("\nAs it should be: {banned} of {all} attackers banned and nobody else");
    if harmless > 0 {
        text += &format!("; {harmless} did nothing that convicts");
    }
    if liars > 0 {
        text += &format!("; of {liars} more {NOT_RECHECKED}");
    }
    if idle > 0 {
        text += &format!("; {idle} more left their duty undone, which convicts nobody and makes idle");
    }
    let accounted = banned + harmless + liars + idle;
    if accounted < all {
        text += &format!("; {} escaped, as these settings let some", all - accounted);
    }
    match facts.replay_stopped {
        None => text + "; every honest member and the replay hold the same state.\n",
        Some(_) => text + "; every honest member holds the same state.\n",
    }
}

/// Whether these settings did what they promise.
///
/// # Errors
/// [`muster_replica::exit::Failure`], negative, with a sentence for each thing that they did not.
pub(super) fn check(facts: &Facts) -> Outcome<()> {
    let mut wrong = honest_wronged(facts);
    let mut escaped = false;
    for (member, attack) in attackers(facts) {
        match (facts.ban(member).is_some(), attack.escape_probability) {
            // A ban without evidence would be one of an honest member as well.
            (true, None) if member.role == "node" => {
                wrong.push(format!("{} was banned, and did nothing that convicts", member.name))
            }
            (false, Some(_)) if attack.convictable => {
                wrong.push(format!("{} got away: {}", member.name, attack.promise));
                escaped = true;
            }
            (false, Some(_)) => escaped = true,
            _ => {}
        }
    }
    // A cheat that escaped may have left a state that no replay reproduces: that is its harm, not a fault.
    let stopped = facts.replay_stopped.as_ref().filter(|what| *what != UNREPLAYED);
    if let Some(what) = stopped.filter(|_| !escaped) {
        wrong.push(format!("the replay does not agree with the run: {what}"));
    }
    verdict(&wrong)
}

#[cfg(test)]
mod tests {
    use super::super::facts::{BanFact, Baselines};
    use super::super::live::{RewindFact, RoundFact};
    use super::*;

    fn attack(name: &'static str, escapes: Option<f64>) -> MemberFact {
        let attack = AttackFact {
            name,
            promise: "what was promised".into(),
            contributions: Some(3),
            audits: 2,
            audits_expected: escapes.map(|_| 1.5),
            contributions_expected: escapes.map(|_| 4.0),
            made: Some(3),
            made_expected: escapes.map(|_| 4.0),
            escape_probability: escapes,
            convictable: escapes.is_some_and(|escapes| escapes < 1e-3),
            idles: name == "sleep",
        };
        MemberFact {
            duty: None,
            row: None,
            idled: 3,
            id: format!("{name}-id"),
            name: name.into(),
            role: "node",
            honest: false,
            attack: Some(attack),
            leaves_counted: 0,
            final_state_root: None,
        }
    }

    fn facts() -> Facts {
        let ban = BanFact {
            id: "flip-id".into(),
            round: 6,
            effective: 8,
            finding: "sum mismatch",
            evidence: "cc".repeat(32),
            verifier: "verifier-id".into(),
        };
        let losses = [5.0, 4.0, 4.5, 3.0];
        let rounds = (4..).zip(losses).map(|(round, loss)| RoundFact { round, loss, seconds: 1.0, bytes: 1 });
        Facts {
            run: "00".into(),
            rounds: rounds.collect(),
            attacked_from: 5,
            members: vec![attack("flip", Some(1e-9)), attack("slow", Some(0.4)), attack("withhold", None)],
            bans: vec![ban],
            rewinds: Vec::new(),
            cheating: vec![CheatFact { id: "flip-id".into(), round: 5, factor: 0.25 }],
            held_parameters: 1.0,
            held_out_loss: None,
            baselines: Baselines { unigram: 3.0, bigram: 2.0 },
            final_state_root: "aa".into(),
            replay_stopped: None,
            run_seconds: 1.0,
            seconds: 2.0,
        }
    }

    #[test]
    fn the_table_says_what_was_found_beside_what_was_expected() {
        let text = table(&facts());
        for words in
            ["from 8", "sum mismatch", "3 (4.0)", "2 (1.5)", "25 %", "probability 40 %", "what was promised"]
        {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(text.contains("4.000 when the attacks began, 4.500 at worst"), "{text}");
        assert!(text.contains("honest members banned: 0"), "{text}");
        let sentence = conclusion(&facts());
        assert!(sentence.contains("1 of 3 attackers banned") && sentence.contains("1 escaped"), "{sentence}");
    }

    #[test]
    fn what_a_rewind_took_back_did_not_count() {
        let mut facts = facts();
        facts.cheating.push(CheatFact { round: 6, ..facts.cheating[0].clone() });
        facts.rewinds = vec![RewindFact { to: 6, next: 9 }];
        let text = table(&facts);
        assert!(text.contains("     1, -1  25 %") && text.contains("what a Rewind took back"), "{text}");
    }

    #[test]
    fn a_liar_that_no_recheck_found_is_not_called_harmless() {
        let mut facts = facts();
        facts.members.push(MemberFact { role: "verifier", ..attack("acquit", None) });
        facts.members.push(MemberFact { role: "verifier", ..attack("sleep", None) });
        check(&facts).unwrap();
        let (text, sentence) = (table(&facts), conclusion(&facts));
        assert!(text.contains("was sealed as idle 3 times (what was promised)"), "{text}");
        assert!(sentence.contains("; 1 more left their duty undone"), "{sentence}");
        assert!(text.contains("no recheck has proved a verdict false (what was promised)"), "{text}");
        assert!(sentence.contains("1 of 5 attackers banned"), "{sentence}");
        assert!(sentence.contains("; 1 did nothing that convicts; of 1 more no recheck"), "{sentence}");
    }

    #[test]
    fn only_what_the_settings_promise_is_demanded() {
        check(&facts()).unwrap();
        let mut stopped = facts();
        stopped.replay_stopped = Some("round 5".into());
        check(&stopped).unwrap();
        type Spoil = fn(&mut Facts);
        let spoiled: [(Spoil, &str); 4] = [
            (|facts| facts.bans.clear(), "flip got away"),
            (|facts| facts.bans[0].id = "withhold-id".into(), "did nothing that convicts"),
            (|facts| facts.members[0].honest = true, "is honest"),
            (
                |facts| {
                    facts.members.remove(1);
                    facts.replay_stopped = Some("round 5".into());
                },
                "does not agree with the run",
            ),
        ];
        for (spoil, words) in spoiled {
            let mut facts = facts();
            spoil(&mut facts);
            let failure = check(&facts).unwrap_err();
            assert!(failure.message.contains(words), "{words}: {failure}");
        }
    }
}
