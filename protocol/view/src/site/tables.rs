//! The rows of lists.

use muster_store::bundles::ENDING;

use crate::document::{Cell, Column, Pager, Table};
use crate::plot::shown;
use crate::story::{AuditState, AuditedBy, BanLine, Happening, MemberLine, RoundLine, Story};

use super::{Purpose, ROWS, Site};

/// The rows of one page of a list, and the way to the others. The list's name may end with `-N`.
pub(super) fn paged<T>(list: &str, page: usize, all: Vec<T>) -> (Vec<T>, Option<Pager>) {
    let (rows, pages) = (all.len(), all.len().div_ceil(ROWS).max(1));
    let of = |page: usize| match page {
        1 => format!("{list}.html"),
        page => format!("{list}-{page}.html"),
    };
    let pager = (pages > 1).then(|| Pager {
        page,
        pages,
        newer: if page > 1 { of(page - 1) } else { String::new() },
        older: if page < pages { of(page + 1) } else { String::new() },
        rows,
    });
    (all.into_iter().skip((page - 1) * ROWS).take(ROWS).collect(), pager)
}

pub(super) fn standing(member: &MemberLine) -> Cell {
    let look = match member.standing {
        "active" => "good",
        "banned" => "bad",
        _ => "waits",
    };
    Cell::of(member.standing).looking(look)
}

pub(super) fn percent(share: f64) -> String {
    format!("{} %", shown((1000.0 * share).round() / 10.0))
}

pub(super) fn maybe(value: Option<impl ToString>) -> Cell {
    value.map_or_else(|| Cell::of("–"), Cell::of)
}

impl Site {
    /// A member, by name and key.
    pub(super) fn who(&self, story: &Story, id: &str) -> Cell {
        match story.member(id) {
            Some(member) => self.called(member),
            None => Cell::of(id.get(..16).unwrap_or(id)).looking("code"),
        }
    }

    /// A member, by its name and the beginning of its key; the one whose program this is stands out.
    pub(super) fn called(&self, member: &MemberLine) -> Cell {
        let cell = Cell::of(member.label()).to(format!("member/{}.html", member.id));
        if self.is_own(&member.id) {
            Cell { text: format!("{} (you)", cell.text), ..cell }.looking("own")
        } else {
            cell
        }
    }

    /// Whether it is the member whose program this is.
    pub(super) fn is_own(&self, id: &str) -> bool {
        self.view().me.is_some_and(|me| format!("{me:#}") == id)
    }

    /// A record, if each has a page.
    pub(super) fn record_cell(&self, height: u64) -> Cell {
        let cell = Cell::of(height);
        if self.purpose == Purpose::Live { cell.to(format!("record/{height}.html")) } else { cell }
    }

    pub(super) fn rounds_table(&self, rounds: &[&RoundLine], pager: Option<Pager>) -> Table {
        let row = |line: &&RoundLine| {
            vec![
                if line.taken_back {
                    Cell::of(format!("{}, taken back", line.round)).looking("waits")
                } else {
                    Cell::of(line.round)
                },
                self.record_cell(line.height),
                Cell::of(if line.leaves > 0 { format!("{:.4}", line.loss) } else { "–".into() }),
                Cell::of(format!("{} of {}", line.committed, line.seats)),
                Cell::of(line.leaves),
                match line.lost {
                    0 => Cell::of(line.parts),
                    lost => Cell::of(format!("{} of {}", line.parts - lost, line.parts)).looking("waits"),
                },
                maybe(line.phases.seconds.map(|seconds| format!("{seconds:.2}"))),
                maybe(line.bytes.map(|bytes| shown(bytes as f64))),
                Cell::of(line.state.get(..16).unwrap_or_default()).looking("code"),
            ]
        };
        Table {
            id: "rounds".into(),
            caption: "Ended rounds, newest first".into(),
            head: Column::all(&[
                "#Round",
                "#Record",
                "#Loss",
                "#Committed",
                "#Leaves",
                "#Parts",
                "#Seconds",
                "#Bytes",
                "State",
            ]),
            rows: rounds.iter().map(row).collect(),
            empty: "No round is over yet.",
            pager,
        }
    }

    pub(super) fn members_table(
        &self,
        story: &Story,
        members: &[&MemberLine],
        pager: Option<Pager>,
    ) -> Table {
        let row = |member: &&MemberLine| {
            let inviter = member.inviter.as_ref();
            vec![
                self.called(member),
                Cell::of(member.role),
                standing(member),
                member.penalty.as_ref().map_or_else(|| Cell::of(""), |penalty| Cell::of(penalty.words())),
                maybe(member.share.map(percent)),
                Cell::of(member.leaves),
                Cell::of(member.verified),
                Cell::of(member.failures),
                inviter.map_or_else(|| Cell::of("organiser"), |inviter| self.who(story, inviter)),
            ]
        };
        Table {
            id: "members".into(),
            caption: "Members, in the order in which they were admitted".into(),
            head: Column::all(&[
                "Member",
                "Role",
                "Standing",
                "Note",
                "#Weight",
                "#Leaves",
                "#Verified",
                "#Failures",
                "Invited by",
            ]),
            rows: members.iter().map(row).collect(),
            empty: "Nobody was admitted yet.",
            pager,
        }
    }

    pub(super) fn audits_table(&self, story: &Story, audits: &[&AuditedBy], pager: Option<Pager>) -> Table {
        let row = |audit: &&AuditedBy| {
            let look = match audit.state {
                AuditState::Passed => "good",
                AuditState::Accused | AuditState::Banned => "bad",
                _ => "waits",
            };
            vec![
                Cell::of(audit.round),
                self.who(story, &audit.member),
                self.who(story, &audit.verifier),
                Cell::of(audit.state.word()).looking(look),
                Cell::of(&audit.reason),
            ]
        };
        Table {
            id: "audits".into(),
            caption: "Audits, newest first".into(),
            head: Column::all(&["#Round", "Member", "Verifier", "State", "Why"]),
            rows: audits.iter().map(row).collect(),
            empty: "No audit was asked for yet.",
            pager,
        }
    }

    pub(super) fn bans_table(&self, story: &Story, bans: &[&BanLine]) -> Table {
        let row = |ban: &&BanLine| {
            let (plain, whole) = (format!("evidence/{}", ban.evidence), bundled(ban));
            let evidence = Cell::of(ban.evidence.get(..16).unwrap_or_default()).looking("code");
            let evidence = if self.has_evidence(&ban.evidence) { evidence.to(plain) } else { evidence };
            let download = || Cell::of("download").to(whole.clone());
            vec![
                self.record_cell(ban.height),
                self.who(story, &ban.member),
                Cell::of(ban.finding).looking("bad"),
                Cell::of(ban.round),
                Cell::of(ban.effective),
                self.who(story, &ban.accuser),
                evidence,
                self.bundle(&whole).map_or_else(|| Cell::of(""), |_| download()),
            ]
        };
        Table {
            id: "bans".into(),
            caption: "Bans, newest first".into(),
            head: Column::all(&[
                "#Record",
                "Member",
                "Found",
                "#Offence in",
                "#Out from",
                "Found by",
                "Evidence",
                "Bundle",
            ]),
            rows: bans.iter().map(row).collect(),
            empty: "Nobody was banned.",
            pager: None,
        }
    }

    pub(super) fn happenings_table(&self, story: &Story, happenings: &[&Happening]) -> Table {
        let row = |happening: &&Happening| {
            vec![
                Cell::of(happening.round),
                happening.height.map_or_else(|| Cell::of("log"), |height| self.record_cell(height)),
                happening.member.as_ref().map_or_else(|| Cell::of(""), |member| self.who(story, member)),
                Cell::of(&happening.text),
            ]
        };
        Table {
            id: "happenings".into(),
            caption: "What else happened, newest first".into(),
            head: Column::all(&["#Round", "#Record", "Member", "What"]),
            rows: happenings.iter().map(row).collect(),
            empty: "Nothing out of the ordinary.",
            pager: None,
        }
    }
}

/// Where the bundle of a ban is.
pub(super) fn bundled(ban: &BanLine) -> String {
    format!("evidence/{}{ENDING}", ban.evidence)
}
