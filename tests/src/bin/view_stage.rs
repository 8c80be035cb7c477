//! Serves the pages of a run that nobody ran, 10,000 rounds with 4,096 members: `view-stage PORT`, for `tests/browser.sh`.
#![allow(clippy::print_stdout)]

use std::sync::Arc;

use muster_core::ids::{MemberId, Round};
use muster_core::manifest::fixture::tiny;
use muster_view::View;
use muster_view::serve::serve;
use muster_view::story::{Counted, MemberLine, Phases, RoundLine, Story};

const ROUNDS: u32 = 10_000;
const MEMBERS: u32 = 4_096;
const SEATS: u32 = 256;
const AUDITS: u32 = 120_000;

#[tokio::main]
async fn main() -> Result<(), String> {
    let port = std::env::args().nth(1).ok_or("view-stage PORT")?;
    let manifest = Arc::new(tiny(MemberId([1; 32]), MemberId([2; 32]), ROUNDS, 4));
    let view = View::told(manifest, story());
    let pages = serve(view, &format!("127.0.0.1:{port}")).await?;
    println!("{}", pages.url);
    std::future::pending().await
}

fn story() -> Story {
    let mut story = Story::default();
    (story.stage, story.waits, story.closed) = ("over", "The run is over.".into(), true);
    story.enlist((0..MEMBERS).map(member).collect());
    let audits = (0..AUDITS).map(|number| (Round(number / 12), id(number % MEMBERS), id(64 * (number % 64))));
    story.audits.enlist(audits);
    story.rounds = (0..ROUNDS).map(round).collect();
    for line in &story.rounds {
        for share in &line.counted {
            let member = &mut story.members[share.member as usize];
            member.rounds += 1;
            member.leaves += u64::from(share.leaves);
        }
    }
    story
}

fn id(number: u32) -> MemberId {
    let mut id = [0; 32];
    id[..4].copy_from_slice(&number.to_be_bytes());
    MemberId(id)
}

fn member(number: u32) -> MemberLine {
    let id = id(number);
    MemberLine {
        id: format!("{id:#}"),
        short: id.to_string(),
        name: format!("member {number}"),
        role: if number.is_multiple_of(64) { "verifier" } else { "node" },
        admitted: number.into(),
        inviter: None,
        depth: 0,
        invited: 0,
        founder: true,
        tree_closed: false,
        standing: if number % 100 == 1 { "banned" } else { "active" },
        penalty: None,
        failures: 0,
        rounds: 0,
        leaves: 0,
        verified: 0,
        audited: 0.05,
        share: None,
        share_class: None,
        row: None,
    }
}

fn round(number: u32) -> RoundLine {
    let first = number % (MEMBERS - SEATS);
    let counted = (first..first + SEATS).map(|member| Counted { member, leaves: 4, weight: 4 });
    RoundLine {
        round: number,
        height: u64::from(3 * number),
        seats: SEATS,
        committed: SEATS,
        leaves: u64::from(4 * SEATS),
        tokens: u64::from(4 * SEATS * 128),
        loss: 1.5 + 40.0 / f64::from(number + 10),
        parts: SEATS,
        lost: 0,
        taken_back: false,
        state: "00".repeat(32),
        bytes: Some(1 << 30),
        phases: Phases {
            began: None,
            freeze: Some(4.0),
            inputs: Some(5.0 + f64::from(number % 7) / 10.0),
            results: Some(6.0),
            seconds: Some(7.0),
        },
        counted: counted.collect(),
    }
}
