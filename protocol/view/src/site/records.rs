//! The ledger, record by record.

use muster_core::messages::record::{Body, Record};

use super::Site;
use super::tables::paged;
use crate::document::{Cell, Column, Document, Table};
use crate::story::Story;
use crate::words::counted;

impl Site {
    pub(super) fn records_page(&self, story: &Story, page: usize) -> Document {
        let mut document = Document::titled("Records").saying(
            "The ledger is a chain of records that the steward has signed, each bound to the one before. This program has checked \
             every one of them against the rules.",
        );
        let run = self.view().manifest.run();
        let heights: Vec<u64> = (0..story.records).rev().collect();
        let (heights, pager) = paged("records", page, heights);
        let row = |height: u64| {
            let record = self.view().record(height)?.verify(run).ok()?;
            Some(vec![self.record_cell(height), Cell::of(kind(&record.body)), Cell::of(gist(&record))])
        };
        document.table(
            "All records",
            Table {
                id: "records".into(),
                caption: "Records, newest first".into(),
                head: Column::all(&["#Height", "Kind", "What it says"]),
                rows: heights.into_iter().filter_map(row).collect(),
                empty: "Nothing is sealed yet.",
                pager,
            },
        );
        document
    }

    pub(super) fn record_page(&self, story: &Story, height: u64) -> Option<Document> {
        let signed = self.view().record(height).filter(|_| height < story.records)?;
        let record = signed.verify(self.view().manifest.run()).ok()?;
        let mut document = Document::titled(format!("Record {height}: {}", kind(&record.body)));
        document.lead.push(gist(&record));
        document.fact("Head before it", Cell::of(format!("{:#}", record.previous)).looking("code"));
        document.fact("Head after it", Cell::of(format!("{:#}", record.head())).looking("code"));
        document.fact("Signed by", Cell::of(format!("{:#}", signed.claimed_signer())).looking("code"));
        if height > 0 {
            let before = height - 1;
            document.fact("Record before", Cell::of(before).to(format!("record/{before}.html")));
        }
        if height + 1 < story.records {
            let after = height + 1;
            document.fact("Record after", Cell::of(after).to(format!("record/{after}.html")));
        }
        document.code("Decoded", format!("{:#?}", record.body));
        Some(document)
    }
}

/// The kind of a record.
fn kind(body: &Body) -> &'static str {
    match body {
        Body::Open(_) => "Open",
        Body::Admit(_) => "Admit",
        Body::Begin(_) => "Begin",
        Body::Freeze(_) => "Freeze",
        Body::Inputs(_) => "Inputs",
        Body::Reassign(_) => "Reassign",
        Body::Outcome(_) => "Outcome",
        Body::Silence(_) => "Silence",
        Body::Answered(_) => "Answered",
        Body::Ban(_) => "Ban",
        Body::Return(_) => "Return",
        Body::Leave(_) => "Leave",
        Body::Rewind(_) => "Rewind",
        Body::Close(_) => "Close",
        Body::Idle(_) => "Idle",
        Body::CloseTree(_) => "CloseTree",
        Body::Ready(_) => "Ready",
        Body::Late(_) => "Late",
        Body::Shares(_) => "Shares",
    }
}

/// What a record says, in a sentence.
fn gist(record: &Record) -> String {
    match &record.body {
        Body::Open(roots) => format!("The run opens with the state {}.", roots.root()),
        Body::Admit(enrol) => format!("{} is admitted.", enrol.claimed_signer()),
        Body::Begin(seats) => format!("Round 0 begins with {}.", counted(seats.len(), "seat")),
        Body::Freeze(freeze) => {
            format!("Round {} is frozen with {}.", freeze.round, counted(freeze.commits.len(), "commitment"))
        }
        Body::Inputs(inputs) => {
            format!(
                "Who counts in {} of round {}, try {}.",
                counted(inputs.parts.len(), "part"),
                inputs.round,
                inputs.attempt
            )
        }
        Body::Reassign(reassign) => {
            format!(
                "Other members reduce {} of round {}.",
                counted(reassign.parts.len(), "part"),
                reassign.round
            )
        }
        Body::Outcome(outcome) => format!(
            "Round {} is over; the state is {}, {} passed since the last one.",
            outcome.round,
            outcome.state.root(),
            counted(outcome.credits.len(), "audit")
        ),
        Body::Silence(request) => {
            format!("A member did not answer the audit that {} asked for.", request.claimed_signer())
        }
        Body::Answered(request) => format!("A member has answered the audit request {request} after all."),
        Body::Ban(ban) => format!(
            "{} is banned from round {} on: {} in round {}, found by {}.",
            ban.culprit,
            ban.effective,
            ban.finding.words(),
            ban.round,
            ban.accuser
        ),
        Body::Return(back) => format!("{} is back.", back.claimed_signer()),
        Body::Leave(leave) => format!("{} has left for good.", leave.claimed_signer()),
        Body::Rewind(rewind) => format!("The state goes back to that before round {}.", rewind.to),
        Body::Close(root) => format!("The run is over; its last state is {root}."),
        Body::Idle(idle) => format!("{} left its duty of round {} undone.", idle.verifier, idle.round),
        Body::CloseTree(_) => "The organiser closes a tree of invitations.".into(),
        Body::Ready(ready) => format!("{} holds its row of experts.", ready.claimed_signer()),
        Body::Late(late) => format!(
            "Audits wait for {}: what they commit to in round {} counts nowhere.",
            counted(late.slots.slots().count(), "member"),
            late.round
        ),
        Body::Shares(shares) => format!(
            "{} may reduce more or less from now on, as fast as what they reduced in round {} came.",
            counted(shares.moves.len(), "member"),
            shares.round
        ),
    }
}
