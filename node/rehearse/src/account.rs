//! The outcome of a rehearsal, for people, and whether it is as it should be.

use std::collections::BTreeSet;
use std::fmt::Write;

use muster_replica::exit::{Exit, Failure, Outcome};
use muster_view::story::DutyLine;
use muster_view::words::counted;

use super::facts::{Facts, MemberFact, UNREPLAYED};

/// Cheated rounds in one line.
const CHEATS: usize = 8;

/// The table.
pub(super) fn table(facts: &Facts) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write_losses(facts, &mut text);
    let _ = write_members(facts, &mut text);
    let _ = write_rows(facts, &mut text);
    text
}

fn write_losses(facts: &Facts, text: &mut String) -> std::fmt::Result {
    let loss = |round: Option<&super::live::RoundFact>| {
        round.map_or("none".into(), |round| format!("{:.3}", round.loss))
    };
    let rounds = counted(facts.rounds.len(), "round");
    let replay = facts.seconds - facts.run_seconds;
    match &facts.replay_stopped {
        None => writeln!(
            text,
            "{rounds} in {:.0} s, replayed to the last bit in {replay:.0} s",
            facts.run_seconds
        )?,
        Some(what) if what == UNREPLAYED => writeln!(text, "{rounds} in {:.0} s, {what}", facts.run_seconds)?,
        Some(what) => writeln!(text, "{rounds} in {:.0} s; the replay stopped: {what}", facts.run_seconds)?,
    }
    for rewind in &facts.rewinds {
        writeln!(
            text,
            "rounds {} to {} were taken back: the state is without them, and as many were trained anew",
            rewind.to,
            rewind.next.saturating_sub(2).max(rewind.to)
        )?;
    }
    writeln!(text)?;
    let (first, last) = (loss(facts.rounds.first()), loss(facts.rounds.last()));
    writeln!(text, "training loss   {first} in the first round, {last} in the last (nats per byte)")?;
    let held_out = facts.held_out_loss.map_or("none".into(), |loss| format!("{loss:.3}"));
    let baselines = facts.baselines;
    writeln!(
        text,
        "held-out loss   {held_out}; on the same text a bigram model has {:.3}, a unigram model {:.3}",
        baselines.bigram, baselines.unigram
    )?;
    writeln!(text, "final state     {}", facts.final_state_root)?;
    writeln!(text)
}

fn write_members(facts: &Facts, text: &mut String) -> std::fmt::Result {
    let all: u64 = facts.members.iter().map(|member| member.leaves_counted).sum();
    writeln!(text, "{:<10} {:<9} {:>6} {:>7}  ended", "member", "as", "leaves", "share")?;
    for member in &facts.members {
        let MemberFact { name, role, honest, leaves_counted, .. } = member;
        let (leaves, share) = match *role {
            "node" => (
                leaves_counted.to_string(),
                format!("{:.1} %", 100.0 * *leaves_counted as f64 / all.max(1) as f64),
            ),
            _ => Default::default(),
        };
        let role = if *honest { role } else { "attacker" };
        write!(text, "{name:<10} {role:<9} {leaves:>6} {share:>7}  ")?;
        for (number, line) in fate(facts, member).iter().enumerate() {
            let indent = if number == 0 { 0 } else { 37 };
            writeln!(text, "{:indent$}{line}", "")?;
        }
    }
    Ok(())
}

/// Who held which row, where there are several.
fn write_rows(facts: &Facts, text: &mut String) -> std::fmt::Result {
    let rows: BTreeSet<u16> = facts.members.iter().filter_map(|member| member.row).collect();
    if rows.is_empty() {
        return Ok(());
    }
    let share = 100.0 * facts.held_parameters;
    writeln!(
        text,
        "\nrows of experts; a node holds one beside what all share, {share:.0} % of the parameters"
    )?;
    for row in rows {
        let holders = facts.members.iter().filter(|member| member.row == Some(row));
        let names: Vec<&str> = holders.map(|member| member.name.as_str()).collect();
        writeln!(text, "{:<10} {}", format!("row {row}"), names.join(", "))?;
    }
    Ok(())
}

/// How a member ended, in lines.
fn fate(facts: &Facts, member: &MemberFact) -> Vec<String> {
    let Some(ban) = facts.ban(member) else {
        let ended = match &member.final_state_root {
            Some(root) if *root == facts.final_state_root => "with the final state".into(),
            Some(root) => format!("with another state, {root:.16}"),
            None => "without a state".into(),
        };
        let duty = member.duty.as_ref().map(|duty| {
            let DutyLine { rounds, coins, due, done, overdue, rechecks } = duty;
            let idle = if member.idled > 0 { format!("; sealed as idle {}", counted(member.idled, "time")) } else { String::new() };
            format!(
                "showed {coins} of {rounds} coins, did {done} of {due} audits, left {overdue} undone, rechecked {rechecks}{idle}"
            )
        });
        return [Some(ended), duty].into_iter().flatten().collect();
    };
    let mut lines = vec![
        format!(
            "banned from round {} on for {} in round {}",
            ban.effective,
            with_article(ban.finding),
            ban.round
        ),
        format!("found by {}, evidence {:.16}", facts.name(&ban.verifier), ban.evidence),
    ];
    let cheated: Vec<_> = facts.cheating.iter().filter(|cheat| cheat.id == member.id).collect();
    if !cheated.is_empty() {
        lines.push("rounds in which its cheating counted, and what the robust rule left of it:".into());
    }
    for some in cheated.chunks(CHEATS) {
        let some = some.iter().map(|cheat| {
            let back = if facts.taken_back(cheat.round) { ", taken back" } else { "" };
            format!("{}: {:.0} %{back}", cheat.round, 100.0 * cheat.factor)
        });
        lines.push(some.collect::<Vec<_>>().join("; "));
    }
    lines
}

fn with_article(finding: &str) -> String {
    let article = if finding.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
    format!("{article} {finding}")
}

/// One sentence, once everything was checked.
pub(super) fn conclusion(facts: &Facts) -> String {
    let count = |role: &str, honest: bool| {
        facts.members.iter().filter(|member| member.role == role && member.honest == honest).count()
    };
    format!(
        "\nAs it should be: {} of {} attackers banned and nobody else; the steward, {}, {} and the replay hold the same \
         state.\n",
        facts.bans.len(),
        count("node", false),
        counted(count("node", true), "node"),
        counted(count("verifier", true), "verifier")
    )
}

/// Whether everything is as it should be.
///
/// # Errors
/// [`Failure`], negative, with a sentence for each thing that is not.
pub(super) fn check(facts: &Facts, learning: bool) -> Outcome<()> {
    let mut wrong = honest_wronged(facts);
    wrong.extend(
        facts.replay_stopped.iter().map(|what| format!("the replay does not agree with the run: {what}")),
    );
    for member in facts.members.iter().filter(|member| !member.honest && facts.ban(member).is_none()) {
        wrong.push(format!("{} cheated, and was not banned", member.name));
    }
    let bigram = facts.baselines.bigram;
    if learning && facts.held_out_loss.is_none_or(|loss| loss.is_nan() || loss >= bigram) {
        wrong.push(format!("the held-out loss is not below that of a bigram model, {bigram:.3}"));
    }
    verdict(&wrong)
}

/// No failure if nothing is wrong.
pub(super) fn verdict(wrong: &[String]) -> Outcome<()> {
    if wrong.is_empty() {
        return Ok(());
    }
    Err(Failure { exit: Exit::Negative, message: wrong.join("; ") })
}

/// What happened to honest members and should not have.
pub(super) fn honest_wronged(facts: &Facts) -> Vec<String> {
    let mut wrong = Vec::new();
    for member in facts.members.iter().filter(|member| member.honest) {
        if member.final_state_root.as_ref() != Some(&facts.final_state_root) {
            wrong.push(format!("{} has not the final state at the end", member.name));
        }
    }
    for member in facts.members.iter().filter(|member| member.honest && facts.ban(member).is_some()) {
        wrong.push(format!("{} was banned, and is honest", member.name));
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::super::facts::{BanFact, Baselines, CheatFact};
    use super::super::live::{RewindFact, RoundFact};
    use super::*;

    fn member(name: &str, role: &'static str, honest: bool) -> MemberFact {
        let root = honest.then(|| "aa".repeat(32));
        MemberFact {
            id: format!("{name}-id"),
            name: name.into(),
            role,
            honest,
            attack: None,
            leaves_counted: 8,
            row: None,
            idled: 0,
            duty: (role == "verifier").then(|| DutyLine {
                rounds: 9,
                coins: 9,
                due: 5,
                done: 4,
                ..DutyLine::default()
            }),
            final_state_root: root,
        }
    }

    fn facts() -> Facts {
        Facts {
            run: "00".into(),
            rounds: vec![RoundFact { round: 0, loss: 5.5, seconds: 0.25, bytes: 1000 }],
            attacked_from: 10,
            members: vec![
                member("steward", "steward", true),
                member("node-1", "node", true),
                member("flip", "node", false),
                member("verifier", "verifier", true),
            ],
            bans: vec![BanFact {
                id: "flip-id".into(),
                round: 11,
                effective: 13,
                finding: "sum mismatch",
                evidence: "cc".repeat(32),
                verifier: "verifier-id".into(),
            }],
            rewinds: Vec::new(),
            cheating: vec![CheatFact { id: "flip-id".into(), round: 10, factor: 0.034 }],
            held_parameters: 1.0,
            held_out_loss: Some(2.0),
            baselines: Baselines { unigram: 3.3, bigram: 2.5 },
            final_state_root: "aa".repeat(32),
            replay_stopped: None,
            run_seconds: 30.0,
            seconds: 40.0,
        }
    }

    #[test]
    fn the_table_says_who_was_banned_and_what_was_left() {
        let text = table(&facts());
        assert!(text.contains("banned from round 13 on for a sum mismatch in round 11\n"), "{text}");
        assert!(text.contains("found by verifier, evidence cccccccccccccccc\n"), "{text}");
        assert!(text.contains("what the robust rule left of it:\n") && text.contains(" 10: 3 %\n"), "{text}");
        assert!(conclusion(&facts()).contains("1 of 1 attackers banned"));
        assert!(
            text.contains("showed 9 of 9 coins, did 4 of 5 audits, left 0 undone, rechecked 0\n"),
            "{text}"
        );
        assert!(text.contains("held-out loss   2.000"), "{text}");
    }

    #[test]
    fn what_was_taken_back_is_said_to_be() {
        let mut facts = facts();
        facts.rewinds = vec![RewindFact { to: 10, next: 14 }];
        let text = table(&facts);
        assert!(text.contains("rounds 10 to 12 were taken back"), "{text}");
        assert!(text.contains(" 10: 3 %, taken back\n"), "{text}");
        assert!([9, 14].iter().all(|round| !facts.taken_back(*round)) && facts.taken_back(12));
    }

    #[test]
    fn the_report_has_the_promised_fields() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("report.json");
        facts().save(&path).unwrap();
        let report: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        for (pointer, value) in [("/rounds/0/bytes", 1000.into()), ("/bans/0/verifier", "verifier-id".into())]
        {
            assert_eq!(report.pointer(pointer), Some::<&serde_json::Value>(&value), "{pointer}");
        }
        let promised = [
            ("/rounds/0", vec!["round", "loss", "seconds", "bytes"]),
            ("/members/0", vec!["id", "role", "honest", "leaves_counted", "final_state_root"]),
            ("/bans/0", vec!["id", "round", "evidence", "verifier"]),
            ("/baselines", vec!["unigram", "bigram"]),
            ("/members/3/duty", vec!["rounds", "coins", "due", "done", "overdue", "rechecks"]),
            ("", vec!["held_out_loss", "final_state_root"]),
        ];
        for (pointer, fields) in promised {
            let object = report.pointer(pointer).unwrap();
            assert!(fields.iter().all(|field| object.get(field).is_some()), "{pointer}");
        }
    }

    #[test]
    fn each_expectation_is_checked() {
        check(&facts(), true).unwrap();
        type Spoil = fn(&mut Facts);
        let spoiled: [(Spoil, &str); 7] = [
            (|facts| facts.bans.clear(), "flip cheated, and was not banned"),
            (|facts| facts.bans[0].id = "node-1-id".into(), "node-1 was banned, and is honest"),
            (|facts| facts.members[0].final_state_root = None, "steward has not the final state"),
            (
                |facts| facts.members[3].final_state_root = Some("bb".into()),
                "verifier has not the final state",
            ),
            (|facts| facts.replay_stopped = Some("round 3".into()), "does not agree with the run: round 3"),
            (|facts| facts.held_out_loss = Some(2.5), "the held-out loss is not below"),
            (|facts| facts.held_out_loss = Some(f64::NAN), "the held-out loss is not below"),
        ];
        for (spoil, sentence) in spoiled {
            let mut facts = facts();
            spoil(&mut facts);
            let failure = check(&facts, true).unwrap_err();
            assert_eq!(failure.exit, Exit::Negative);
            assert!(failure.message.contains(sentence), "{failure}");
        }
        let mut short = facts();
        short.held_out_loss = Some(4.0);
        check(&short, false).unwrap();
    }
}
