//! What a replay confirmed, as `report.html` and `report.json`.

use std::fs;
use std::io;
use std::path::Path;

use muster_replica::archive::{Archive, Replayed};
use muster_replica::exit::Failure;
use muster_view::document::{Cell, Column, Document, Table};
use muster_view::plot::{Plot, Series};
use muster_view::report::Report;
use muster_view::site::charts::{CHARTS, chart};
use muster_view::{Source, View};
use serde_json::{Value, json};

use super::summary::Summary;

/// Makes the folder of a report: before hours of work, not after.
///
/// # Errors
/// [`Failure`] naming it.
pub(super) fn prepare(folder: &Path) -> Result<(), Failure> {
    fs::create_dir_all(folder).map_err(|error| failed(folder, &error))
}

/// Writes the report.
///
/// # Errors
/// [`Failure`] naming the file.
pub(super) fn write(folder: &Path, archive: &Archive, summary: &Summary) -> Result<(), Failure> {
    let path = folder.join("report.json");
    let text = format!("{:#}\n", facts(archive, summary));
    fs::write(&path, text).map_err(|error| failed(&path, &error))?;
    let source = Source::Whole(archive.records.clone());
    let view = View::start(archive.manifest.clone(), source, Some(archive.folder.clone()), None);
    view.read_whole().map_err(Failure::environment)?;
    let plots = {
        let story = view.story();
        let named = |name: &&str| Some(((*name).to_owned(), chart(&story, name)?));
        // The losses are those of the replay, not those that members claim.
        let others = CHARTS.iter().filter(|name| **name != "loss").filter_map(named);
        std::iter::once(("loss".to_owned(), losses(&summary.replayed))).chain(others).collect()
    };
    let report = Report {
        of: archive.manifest.name.to_string(),
        document: document(archive, summary),
        before: 0,
        plots,
    };
    report.write(folder).map_err(|error| failed(folder, &error))
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::environment(format!("{}: cannot be written ({error})", path.display()))
}

fn facts(archive: &Archive, summary: &Summary) -> Value {
    let Summary { rounds, bans, recomputed, replayed, .. } = summary;
    let bad = replayed
        .bad
        .iter()
        .map(|bad| json!({ "id": format!("{:#}", bad.member), "round": bad.round.0, "factor": bad.factor }));
    let leaves = replayed.leaves.iter().map(|(member, leaves)| (format!("{member:#}"), json!(leaves)));
    json!({
        "run": format!("{:#}", archive.manifest.run()),
        "rounds": rounds,
        "losses": replayed.losses,
        "held_out_loss": replayed.held_out_loss,
        "final_state_root": format!("{:#}", replayed.root),
        "bans": bans.len(),
        "earlier_rounds": summary.earlier_rounds(),
        "recomputed": recomputed.0,
        "counted": recomputed.1,
        "cheating": bad.collect::<Vec<_>>(),
        "leaves_counted": leaves.collect::<serde_json::Map<_, _>>(),
    })
}

fn losses(replayed: &Replayed) -> Plot {
    let points = replayed.losses.iter().enumerate().map(|(round, loss)| (round as f64, *loss)).collect();
    Plot {
        title: "Loss".into(),
        notes: vec!["Mean loss of the leaves that counted, as they were replayed.".into()],
        x: "round".into(),
        y: "nats a token".into(),
        series: vec![Series { name: "training".into(), points }],
        ..Plot::default()
    }
}

fn document(archive: &Archive, summary: &Summary) -> Document {
    let mut document = Document::titled("Replay");
    document.lead.extend(summary.lines().into_iter().next().map(|line| format!("{line}.")));
    document.fact("Run", Cell::of(format!("{:#}", archive.manifest.run())).looking("code"));
    document.fact("Final state", Cell::of(format!("{:#}", summary.replayed.root)).looking("code"));
    document.fact("Bans confirmed by their evidence", Cell::of(summary.bans.len()));
    document.fact("Rounds checked by an earlier replay on this machine", Cell::of(summary.earlier_rounds()));
    let (recomputed, counted) = summary.recomputed;
    document.fact("Contributions recomputed", Cell::of(format!("{recomputed} of {counted}")));
    if let Some(loss) = summary.replayed.held_out_loss {
        document.fact("Held-out loss", Cell::of(format!("{loss:.4}")));
    }
    let row = |bad: &muster_replica::archive::BadContribution| {
        let left = bad.factor.map_or_else(|| "–".into(), |factor| format!("{:.1} %", 100.0 * factor));
        vec![Cell::of(format!("{:#}", bad.member)).looking("code"), Cell::of(bad.round), Cell::of(left)]
    };
    document.table(
        "False contributions that counted",
        Table {
            id: "cheating".into(),
            caption: "False contributions of convicts that counted, and what the robust rule left of them"
                .into(),
            head: Column::all(&["Member", "#Round", "#The rule left"]),
            rows: summary.replayed.bad.iter().map(row).collect(),
            empty: "None.",
            pager: None,
        },
    );
    document
}
