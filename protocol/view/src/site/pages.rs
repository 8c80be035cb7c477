//! The documents of the site.

use std::collections::BTreeMap;

use muster_store::bundles::ENDING;

use super::charts::{CHARTS, recent_loss};
use super::tables::{bundled, maybe, paged, percent, standing};
use super::{Purpose, ROWS, Site};
use crate::document::{Cell, Column, Document, Table};
use crate::manifest;
use crate::plot::shown;
use crate::story::{DutyLine, HarmLine, MemberLine, Story};
use crate::words::{counted, lasting};

/// Rows of a list on a page that is about something else.
const FEW: usize = 10;
/// Texts by the model that are shown.
const SAMPLES: usize = 4;
/// Pages that list one thing each, but for records.
const LISTS: [&str; 7] = ["rounds", "members", "board", "audits", "bans", "harm", "verifiers"];

impl Site {
    /// The document of a page, by its path without the ending.
    pub(super) fn document(&self, name: &str, version: u64) -> Option<Document> {
        let story = self.view().story();
        if let Some(id) = name.strip_prefix("member/") {
            return self.member_page(&story, id);
        }
        if let Some(height) = name.strip_prefix("record/") {
            return self.record_page(&story, height.parse().ok()?);
        }
        let (list, page) = match name.split_once('-') {
            Some((list, page)) => (list, page.parse().ok().filter(|page| *page > 1)?),
            None => (name, 1),
        };
        let rows = match list {
            "index" | "manifest" => 1,
            "records" if self.purpose == Purpose::Files => return None,
            "records" => usize::try_from(story.records).unwrap_or(usize::MAX),
            list => rows_of(&story, list)?,
        };
        if page > rows.div_ceil(ROWS).max(1) {
            return None;
        }
        let mut document = match list {
            "index" => self.overview(&story, version),
            "rounds" => self.rounds_page(&story, page, version),
            "members" => self.members_page(&story, page),
            "board" => self.board(&story, page),
            "audits" => self.audits_page(&story, page, version),
            "bans" => self.bans_page(&story, page, version),
            "harm" => self.harm_page(&story, page),
            "verifiers" => self.verifiers(&story, page),
            "records" => self.records_page(&story, page),
            _ => self.manifest_page(),
        };
        document.alarm = story.alarm();
        Some(document)
    }

    /// Every page that there is, but those of records.
    pub(crate) fn pages(&self) -> Vec<String> {
        let story = self.view().story();
        let lists = LISTS.into_iter().filter_map(|list| Some((list, rows_of(&story, list)?)));
        let one = ["index", "manifest"].map(|name| format!("{name}.html"));
        let lists = lists.flat_map(|(list, rows)| {
            (1..=rows.div_ceil(ROWS).max(1)).map(move |page| match page {
                1 => format!("{list}.html"),
                page => format!("{list}-{page}.html"),
            })
        });
        let members = story.members.iter().map(|member| format!("member/{}.html", member.id));
        let charts = CHARTS.iter().flat_map(|name| {
            let drawn = ["svg", "json"].map(|ending| format!("charts/{name}.{ending}"));
            drawn.into_iter().chain([format!("charts/{name}-small.svg"), format!("data/{name}.csv")])
        });
        let evidence = story.bans.iter().flat_map(|ban| [format!("evidence/{}", ban.evidence), bundled(ban)]);
        let assets = ["style.css", "icon.svg", "charts.js"].map(str::to_owned);
        let whole = ["run", "rounds", "members", "audits", "bans"].map(|name| format!("api/{name}.json"));
        let all = one.into_iter().chain(lists).chain(members).chain(charts).chain(evidence);
        all.chain(assets).chain(whole).collect()
    }

    fn overview(&self, story: &Story, version: u64) -> Document {
        let manifest = &self.view().manifest;
        let mut page = Document::titled(format!("Run {}: {}", &*manifest.name, state(story)));
        if story.records < story.known {
            page.lead.push(format!(
                "Reading the ledger: {} of {} records are checked. This page goes on by itself.",
                story.records, story.known
            ));
        }
        page.lead.push(story.waits.clone());
        self.key_facts(story, &mut page);
        for name in ["loss", "phases", "weight"] {
            if let Some(plot) = super::charts::chart(story, name) {
                page.plot(name, &plot, false, version);
            }
        }
        if let Some(text) = samples(story) {
            page.code("What the model writes", text);
        }
        let bans: Vec<_> = story.bans.iter().rev().take(FEW).collect();
        page.table("Bans", self.bans_table(story, &bans));
        let audits: Vec<_> = story.audits.lines().iter().rev().take(FEW).collect();
        page.table("Latest audits", self.audits_table(story, &audits, None));
        let happenings: Vec<_> = story.happenings.iter().rev().take(FEW).collect();
        page.table("What else happened", self.happenings_table(story, &happenings));
        page
    }

    fn key_facts(&self, story: &Story, page: &mut Document) {
        let manifest = &self.view().manifest;
        let active = |role| {
            story.members.iter().filter(|member| member.role == role && member.standing == "active").count()
        };
        let of = |role| story.members.iter().filter(|member| member.role == role).count();
        if let Some(me) = self.view().me {
            self.own_facts(story, &format!("{me:#}"), page);
        }
        page.fact("Rounds", Cell::of(format!("{} of {}", story.rounds.len(), manifest.training.rounds)));
        let done = story.rounds.last().map_or(0, |last| last.round + 1);
        let left = manifest.training.rounds.saturating_sub(done);
        if let Some(rest) = story.rest(left).filter(|_| left > 0 && !story.closed) {
            page.fact("Time left, at this pace", Cell::of(format!("about {}", lasting(rest))));
        }
        if let Some((loss, before)) = recent_loss(story) {
            let moved = before.map_or_else(String::new, |before| format!(" ({:+.3})", loss - before));
            page.fact("Training loss, last rounds", Cell::of(format!("{loss:.3}{moved}")));
        }
        if let Some((round, loss)) = story.held_out.last_key_value() {
            page.fact("Held-out loss", Cell::of(format!("{loss:.3} before round {round}")));
        }
        if let Some(baselines) = story.baselines {
            let text = format!("bigram {:.3}, unigram {:.3}", baselines.bigram, baselines.unigram);
            page.fact("Simple models, held out", Cell::of(text));
        }
        let (seconds, timed) = story.timed();
        if timed > 0 {
            let tokens: u64 = story
                .rounds
                .iter()
                .filter(|line| line.phases.seconds.is_some())
                .map(|line| line.tokens)
                .sum();
            page.fact("Seconds a round", Cell::of(format!("{:.2}", seconds / timed as f64)));
            page.fact("Tokens a second", Cell::of(shown((tokens as f64 / seconds.max(1e-3)).round())));
        }
        page.fact("Nodes taking part", Cell::of(format!("{} of {}", active("node"), of("node"))));
        page.fact("Verifiers taking part", Cell::of(format!("{} of {}", active("verifier"), of("verifier"))));
        let [passed, guilty, silent] = story.audits.counts();
        page.fact("Audits passed", Cell::of(passed).looking("good"));
        let look = if guilty > 0 { "bad" } else { "" };
        page.fact("Audits that found something", Cell::of(guilty).looking(look));
        if silent > 0 {
            page.fact("Audits not answered", Cell::of(silent).looking("waits"));
        }
        page.fact("Bans", Cell::of(story.bans.len()).to("bans.html"));
        let records = Cell::of(story.records);
        let live = self.purpose == Purpose::Live;
        page.fact("Records checked here", if live { records.to("records.html") } else { records });
        page.fact("State", Cell::of(story.state.get(..16).unwrap_or_default()).looking("code"));
    }

    /// What the member whose program this is has done, and what keeps it from doing more.
    fn own_facts(&self, story: &Story, me: &str, page: &mut Document) {
        let Some(own) = story.member(me) else {
            page.fact("You", Cell::of("not admitted yet").looking("waits"));
            return;
        };
        page.fact("You", self.called(own));
        let penalty =
            own.penalty.as_ref().map_or_else(String::new, |penalty| format!(", {}", penalty.words()));
        page.fact("Your standing", Cell { text: format!("{}{penalty}", own.standing), ..standing(own) });
        if own.role == "node" {
            let counted = format!("{} in {}", counted(own.leaves, "leaf"), counted(own.rounds, "round"));
            page.fact("Your work that counted", Cell::of(counted));
            page.fact("Your leaves verified", Cell::of(own.verified));
            page.fact("Your share of the last round", maybe(own.share.map(percent)));
        } else {
            page.fact("Your audits that passed", Cell::of(story.audits.passed().get(me).unwrap_or(&0)));
            let found = story.bans.iter().filter(|ban| ban.accuser == me).count();
            page.fact("Cheats that you found", Cell::of(found));
        }
    }

    fn rounds_page(&self, story: &Story, page: usize, version: u64) -> Document {
        let mut document = Document::titled("Rounds").saying(
            "A round is over when the steward seals its Outcome. Loss is what members claim of their leaves. Seconds and bytes \
             are what this program saw, or its steward's log.",
        );
        if page == 1 {
            for name in ["speed", "bytes"] {
                if let Some(plot) = super::charts::chart(story, name) {
                    document.plot(name, &plot, false, version);
                }
            }
        }
        let (rounds, pager) = paged("rounds", page, story.rounds.iter().rev().collect());
        document.table("Ended rounds", self.rounds_table(&rounds, pager));
        document
    }

    fn members_page(&self, story: &Story, page: usize) -> Document {
        let mut document = Document::titled("Members").saying(
            "A name is what a member calls itself, and others may have the same one: the key beside it tells them apart. \
             Verified leaves were recomputed by a verifier and found right.",
        );
        let mut members: Vec<&MemberLine> = story.members.iter().collect();
        members.sort_by_key(|member| !self.is_own(&member.id));
        let (members, pager) = paged("members", page, members);
        document.table("All members", self.members_table(story, &members, pager));
        if page == 1 {
            document.table("Trees of invitations", self.trees(story));
        }
        document
    }

    fn audits_page(&self, story: &Story, page: usize, version: u64) -> Document {
        let [passed, guilty, silent] = story.audits.counts();
        let mut document = Document::titled("Audits").saying(format!(
            "{passed} passed, {guilty} found something, {silent} were not answered. A ban needs evidence that the steward \
             re-executed; a credit in the ledger needs a verdict that passed."
        ));
        if page == 1
            && let Some(plot) = super::charts::chart(story, "audits")
        {
            document.plot("audits", &plot, false, version);
        }
        let (audits, pager) = paged("audits", page, story.audits.lines().iter().rev().collect());
        document.table("All audits", self.audits_table(story, &audits, pager));
        document
    }

    fn bans_page(&self, story: &Story, page: usize, version: u64) -> Document {
        let mut document = Document::titled("Bans").saying(
            "A ban rests on evidence, which anybody can re-execute. Do not believe this page: download the bundle of a ban, \
             which has all that its evidence is judged by, and check it on a machine of yours. Or follow the run into a folder \
             DIR of your own, and check the ban there. Whoever is a member has such a folder.",
        );
        let (bans, pager) = paged("bans", page, story.bans.iter().rev().collect::<Vec<_>>());
        document.table("All bans", Table { pager, ..self.bans_table(story, &bans) });
        if !bans.is_empty() {
            let bundles = bans.iter().take(FEW).filter(|ban| self.bundle(&bundled(ban)).is_some());
            let bundles: String =
                bundles.map(|ban| format!("muster-verifier check {}{ENDING}\n", ban.evidence)).collect();
            if !bundles.is_empty() {
                document.code("Check what you have downloaded", bundles);
            }
            // DIR is anybody's own: where this program has its folder is nobody's business.
            let checks = bans
                .iter()
                .take(FEW)
                .map(|ban| format!("muster-verifier check DIR/evidence/{}.evidence\n", ban.evidence));
            document.code(
                "Check them in a folder of yours",
                format!("{}{}", self.observe_line(), checks.collect::<String>()),
            );
        }
        let harm = self.harm(story, story.harm.iter().rev().take(FEW));
        document.table("What was found in convicts' earlier rounds", harm);
        if story.harm.len() > FEW {
            let all = Cell::of(format!("all {}", story.harm.len())).to("harm.html");
            document.fact("False contributions of convicts", all);
        }
        if let Some(plot) = super::charts::chart(story, "weight") {
            document.plot("weight", &plot, false, version);
        }
        document
    }

    fn member_page(&self, story: &Story, id: &str) -> Option<Document> {
        let member = story.member(id)?;
        let mut page = Document::titled(format!("{} {}", member.role, self.called(member).text));
        page.lead.extend(member.penalty.as_ref().map(|penalty| format!("It {}.", penalty.words())));
        page.fact("Key", Cell::of(&member.id).looking("code"));
        page.fact("Standing", standing(member));
        page.fact("Admitted by record", self.record_cell(member.admitted));
        let inviter =
            member.inviter.as_ref().map_or_else(|| Cell::of("the organiser"), |id| self.who(story, id));
        page.fact("Invited by", inviter);
        if member.role == "node" {
            page.fact("Rounds in which it counted", Cell::of(member.rounds));
            page.fact("Leaves that counted", Cell::of(member.leaves));
            page.fact("Leaves verified", Cell::of(member.verified));
            page.fact("Share of the last round's weight", maybe(member.share.map(percent)));
            if let Some(class) = member.share_class {
                page.fact("Share class of its line, 0 to 16", Cell::of(class));
            }
            page.fact("Audited with probability", Cell::of(percent(member.audited)));
            page.fact("Rounds that it let wait", Cell::of(member.failures));
        }
        page.fact("Founder", Cell::of(if member.founder { "yes" } else { "no" }));
        let bans: Vec<_> = story.bans.iter().filter(|ban| ban.member == id).collect();
        if !bans.is_empty() {
            page.table("Ban", self.bans_table(story, &bans));
        }
        let audits: Vec<_> = story.audits.of(id).take(ROWS).collect();
        page.table("Its latest audits", self.audits_table(story, &audits, None));
        let happenings: Vec<_> =
            story.happenings.iter().rev().filter(|h| h.member.as_deref() == Some(id)).take(ROWS).collect();
        page.table("What else happened to it", self.happenings_table(story, &happenings));
        let invited = story.members.iter().filter(|other| other.inviter.as_deref() == Some(id));
        let invited: Vec<_> = invited.take(ROWS).collect();
        if !invited.is_empty() {
            page.table("Members that it brought in", self.members_table(story, &invited, None));
        }
        Some(page)
    }

    fn manifest_page(&self) -> Document {
        let manifest = &self.view().manifest;
        let mut document = Document::titled("Manifest")
            .saying("Everything that members agreed on before the run began. Its hash is the run's name.");
        document.fact("Run", Cell::of(format!("{:#}", manifest.run())).looking("code"));
        document.fact("Organiser", Cell::of(format!("{:#}", manifest.organiser)).looking("code"));
        document.fact("Steward", Cell::of(format!("{:#}", manifest.steward)).looking("code"));
        document.code("Follow the run yourself, checking every record and every state", self.observe_line());
        for (heading, sentences) in manifest::words(manifest) {
            document.text(heading, sentences);
        }
        document.code("Every setting", format!("{manifest:#?}"));
        document
    }
}

/// The newest texts by the model, and its first one, to compare.
fn samples(story: &Story) -> Option<String> {
    let texts = story
        .samples
        .iter()
        .map(|(round, sample)| format!("before round {round}\n{}{}\n", sample.prompt, sample.text));
    let texts: Vec<String> = texts.collect();
    let (first, later) = texts.split_first()?;
    let newest = later.iter().rev().take(SAMPLES - 1);
    Some(newest.chain([first]).map(String::as_str).collect::<Vec<_>>().join("\n"))
}

/// Rows of a list.
fn rows_of(story: &Story, list: &str) -> Option<usize> {
    match list {
        "rounds" => Some(story.rounds.len()),
        "members" | "board" => Some(story.members.len()),
        "audits" => Some(story.audits.lines().len()),
        "bans" => Some(story.bans.len()),
        "harm" => Some(story.harm.len()),
        "verifiers" => Some(story.members.iter().filter(|member| member.role == "verifier").count()),
        _ => None,
    }
}

/// What the run is doing, for a title.
fn state(story: &Story) -> String {
    match story.rounds.last() {
        Some(last) if !story.closed => format!("{}, after round {}", story.stage, last.round),
        _ => story.stage.to_owned(),
    }
}

impl Site {
    /// Who contributed how much: those with most verified leaves first.
    fn board(&self, story: &Story, page: usize) -> Document {
        let mut document = Document::titled("Contributions").saying(
            "Leaves that counted in the model, by member; of these, verifiers have recomputed the verified ones and found them right. \
             What banned members contributed is not listed as theirs.",
        );
        let nodes =
            story.members.iter().filter(|member| member.role == "node" && member.standing != "banned");
        let mut nodes: Vec<&MemberLine> = nodes.collect();
        nodes.sort_by_key(|member| (std::cmp::Reverse((member.leaves, member.verified)), member.admitted));
        let all: u64 = nodes.iter().map(|member| member.leaves).sum();
        let mut ranked: Vec<(usize, &MemberLine)> = nodes.into_iter().enumerate().collect();
        ranked.sort_by_key(|(_, member)| !self.is_own(&member.id));
        let (ranked, pager) = paged("board", page, ranked);
        let row = |(place, member): (usize, &MemberLine)| {
            vec![
                Cell::of(place + 1),
                self.called(member),
                Cell::of(member.leaves),
                Cell::of(percent(member.leaves as f64 / all.max(1) as f64)),
                Cell::of(member.verified),
                Cell::of(member.rounds),
                standing(member),
            ]
        };
        let table = Table {
            id: "board".into(),
            caption: "Contributions, the largest first".into(),
            head: Column::all(&["#Place", "Member", "#Leaves", "#Share", "#Verified", "#Rounds", "Standing"]),
            rows: ranked.into_iter().map(row).collect(),
            empty: "Nothing has counted yet.",
            pager,
        };
        document.table("Nodes", table);
        document
    }

    /// What verifiers did, and what they left undone.
    fn verifiers(&self, story: &Story, page: usize) -> Document {
        let mut document = Document::titled("Verifiers").saying(
            "A verifier's coin says which audits it owes. Due, done and undone are as the steward counts them since it was last \
             started; passed and found are from the ledger.",
        );
        let none = DutyLine::default();
        let passed = story.audits.passed();
        let mut found: BTreeMap<&str, u64> = BTreeMap::new();
        story.bans.iter().for_each(|ban| *found.entry(ban.accuser.as_str()).or_default() += 1);
        let row = |member: &&MemberLine| {
            let duty = story.duties.get(&member.id);
            let count = |value: fn(&DutyLine) -> u64| maybe(duty.map(value));
            let (passed, found) = (passed.get(&*member.id), found.get(&*member.id));
            let overdue = duty.unwrap_or(&none).overdue;
            let look = if overdue > 0 { "bad" } else { "" };
            vec![
                self.called(member),
                standing(member),
                count(|duty| duty.due),
                count(|duty| duty.done),
                count(|duty| duty.overdue).looking(look),
                count(|duty| duty.rechecks),
                Cell::of(passed.unwrap_or(&0)),
                Cell::of(found.unwrap_or(&0)),
            ]
        };
        let members = story.members.iter().filter(|member| member.role == "verifier").collect();
        let (members, pager) = paged("verifiers", page, members);
        let table = Table {
            id: "verifiers".into(),
            caption: "Verifiers and their duty".into(),
            head: Column::all(&[
                "Verifier",
                "Standing",
                "#Due",
                "#Done",
                "#Undone",
                "#Rechecks",
                "#Passed",
                "#Convictions",
            ]),
            rows: members.iter().map(row).collect(),
            empty: "The run has no verifier yet: nothing is audited.",
            pager,
        };
        document.table("Duty", table);
        document
    }

    /// Members who brought in others, each with those below it.
    fn trees(&self, story: &Story) -> Table {
        let mut below: BTreeMap<&str, Vec<&MemberLine>> = BTreeMap::new();
        for member in &story.members {
            if let Some(inviter) = &member.inviter {
                below.entry(inviter).or_default().push(member);
            }
        }
        let tops =
            story.members.iter().filter(|member| member.inviter.is_none() && below.contains_key(&*member.id));
        let mut rows = Vec::new();
        let mut open: Vec<(usize, &MemberLine)> = tops.map(|member| (0, member)).collect();
        open.reverse();
        while let Some((depth, member)) = open.pop() {
            if rows.len() == 10 * ROWS {
                let more = Cell::of("more below; each member's page has those that it brought in");
                rows.push(vec![more, Cell::default(), Cell::default(), Cell::default()]);
                break;
            }
            let mut name = self.called(member);
            name.text = format!("{}{}", "– ".repeat(depth), name.text);
            let closed =
                if member.tree_closed { Cell::of("closed").looking("waits") } else { Cell::of("open") };
            rows.push(vec![name, standing(member), Cell::of(member.invited), closed]);
            let children = below.get(&*member.id).into_iter().flatten();
            open.extend(children.rev().map(|child| (depth + 1, *child)));
        }
        Table {
            id: "trees".into(),
            caption: "Members who brought in others, and those below them".into(),
            head: Column::all(&["Member", "Standing", "#Brought in", "Tree"]),
            rows,
            empty: "No member has brought in another one.",
            pager: None,
        }
    }

    /// All that convicts placed before.
    fn harm_page(&self, story: &Story, page: usize) -> Document {
        let mut document = Document::titled("False contributions of convicts").saying(
            "Once a member is convicted, the steward recomputes its earlier rounds. The robust rule bounds what a false contribution \
             moves. The newest contribution comes first.",
        );
        let (lines, pager) = paged("harm", page, story.harm.iter().rev().collect());
        document.table("What was found", Table { pager, ..self.harm(story, lines.into_iter()) });
        document
    }

    /// What convicts placed before, as far as the steward recomputed it.
    fn harm<'a>(&self, story: &Story, lines: impl Iterator<Item = &'a HarmLine>) -> Table {
        // Where nothing is taken back, nobody measures what it would be worth to do so (ROLLBACK-2).
        let measured = story.harm.iter().any(|line| line.moved.is_some());
        let row = |line: &HarmLine| {
            let mut row = vec![
                self.who(story, &line.member),
                Cell::of(line.round),
                Cell::of(&line.wrong).looking("bad"),
            ];
            if measured {
                row.push(maybe(line.moved.map(percent)));
            }
            row
        };
        let all = ["Member", "#Round", "False", "#Moved the round's aggregate by"];
        Table {
            id: "harm".into(),
            caption: "False contributions and parts of convicts".into(),
            head: Column::all(if measured { &all } else { &all[..3] }),
            rows: lines.map(row).collect(),
            empty: "None is known. Only the steward's log has them.",
            pager: None,
        }
    }
}
