use std::fs;
use std::path::{Path, PathBuf};

use muster_core::manifest::{Data, DataFile, Tokeniser, TokeniserFile};
use muster_core::router::{BUCKETS, RouterRow};

use super::super::committed::Committed;
use super::super::tests::Stranger;
use super::super::{Dataset, RouterSize, SourceText, described, open_router, pack, pack_routed, row_shares};
use super::*;
use crate::error::{Kind, Result};
use crate::files;

/// The core's sources and the specification, in order of their paths: texts of two kinds.
fn sources() -> Vec<Result<SourceText>> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { walk(&path, found) } else { found.push(path) }
        }
    }
    let mut paths = Vec::new();
    ["../core/src", "../../spec"]
        .iter()
        .for_each(|folder| walk(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut paths));
    paths.retain(|path| path.extension().is_some_and(|kind| kind == "rs" || kind == "md"));
    paths.sort();
    paths.iter().map(|path| SourceText::read(path, path.display().to_string())).collect()
}

fn held_out() -> [Result<SourceText>; 1] {
    [Ok(SourceText { name: "held out".into(), bytes: b"held out text".to_vec() })]
}

fn packed(out: &Path, rows: u16, tokens: u16) -> Result<Data> {
    pack_routed(sources(), held_out(), out, Some(RouterSize { rows, tokens }), &mut |_| ())
}

/// Row 0 likes 1, row 1 likes 2, row 2 likes nothing and begins with 1.
fn table() -> Table {
    let row = |liked: usize, bias| {
        let mut entries = [0; BUCKETS];
        entries[liked] = 1;
        RouterRow { entries, bias }
    };
    Table::new(vec![row(1, 0), row(2, 0), row(255, 1)]).unwrap()
}

#[test]
fn rows_of_source_text_have_nearly_equal_shares() {
    let directory = tempfile::tempdir().unwrap();
    for rows in [2, 5] {
        let out = directory.path().join(rows.to_string());
        let data = packed(&out, rows, 64).unwrap();
        let corpus = Dataset::open(&out, &data).unwrap();
        let shares = row_shares(&corpus).unwrap();
        println!("{rows} rows: {shares:?}");
        let equal = 1.0 / f64::from(rows);
        assert!(shares.iter().all(|share| (share - equal).abs() < 0.05 * equal), "{shares:?}");
        // Windows of a model have nearly the shares of the text.
        let windows = (data.tokens() - 1) / 128;
        let mut counts = vec![0u64; rows.into()];
        (0..windows)
            .for_each(|window| counts[corpus.row_of(window, 128, |_| true).unwrap().unwrap().index()] += 1);
        println!("{windows} windows: {counts:?}");
        let fair = windows as f64 * equal;
        assert!(
            counts.iter().all(|count| (*count as f64 - fair).abs() < 0.2 * fair),
            "{counts:?} of {windows}"
        );
        // A row is more than chance: the text 128 bytes on is mostly of the same row.
        let row = |window| corpus.row_of(window, 128, |_| true).unwrap();
        let kept = (1..windows).filter(|window| row(*window) == row(window - 1)).count() as f64;
        println!("{:.3} keep their row", kept / windows as f64);
        assert!(kept > 1.3 * fair, "{kept} of {windows}");
        let about = fs::read_to_string(out.join("corpus.txt")).unwrap();
        assert!(
            about.contains(&format!("\nrow, share of the windows\n         0 {:.4}\n", shares[0])),
            "{about}"
        );
    }
}

#[test]
fn the_same_text_gives_the_same_router() {
    let directory = tempfile::tempdir().unwrap();
    let [one, two] = ["one", "two"].map(|name| packed(&directory.path().join(name), 3, 32).unwrap());
    assert_eq!(one, two);
    let router = one.router.clone().unwrap();
    assert_eq!((router.rows, router.tokens), (3, 32));
    assert_eq!(described(&directory.path().join("one")).unwrap(), one);
    assert_ne!(packed(&directory.path().join("other"), 3, 64).unwrap().router.unwrap().digest, router.digest);
}

#[test]
fn sizes_that_no_router_or_no_text_has_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("corpus");
    for (rows, tokens) in [(1, 64), (65, 64), (5, 0), (5, 4097)] {
        let error = packed(&out, rows, tokens).unwrap_err();
        assert_eq!((error.kind(), error.path()), (Kind::Refused, out.as_path()));
        assert!(
            error.to_string().contains("a router has 2 to 64 rows and reads 1 to 4096 tokens"),
            "{error}"
        );
    }
    let text = |bytes: usize| [Ok(SourceText { name: "short".into(), bytes: vec![b'a'; bytes] })];
    let pack = |bytes| {
        let size = Some(RouterSize { rows: 4, tokens: 16 });
        pack_routed(text(bytes), held_out(), &out, size, &mut |_| ())
    };
    let error = pack(62).unwrap_err().to_string();
    assert!(error.contains("63 training tokens are too few for 4 rows that read 16: at least 64"), "{error}");
    assert!(!out.exists());
    // Nothing tells the places of such a text apart, but it is a text.
    let data = pack(63).unwrap();
    assert_eq!(row_shares(&Dataset::open(&out, &data).unwrap()).unwrap().iter().sum::<f64>(), 1.0);
}

#[test]
fn data_8_a_changed_or_missing_router_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("corpus");
    let data = packed(&out, 2, 64).unwrap();
    assert_eq!(files::names(&out).unwrap(), ["corpus.txt", "held-out.bin", "router.bin", "train.bin"]);
    let path = out.join(ROUTER);
    let whole = fs::read(&path).unwrap();
    assert_eq!(whole.len(), 2 * 1028);
    let refused = |bytes: &[u8], data: &Data, kind| {
        fs::write(&path, bytes).unwrap();
        let error = Dataset::open(&out, data).unwrap_err();
        assert_eq!((error.kind(), error.path()), (kind, path.as_path()), "{error}");
    };
    for place in [0, 1027, 1028, 2055] {
        let mut forged = whole.clone();
        forged[place] ^= 0x80;
        refused(&forged, &data, Kind::Corrupt);
    }
    refused(&whole[1..], &data, Kind::Corrupt);
    refused(&[whole.as_slice(), &[0; 1028]].concat(), &data, Kind::Corrupt);
    // As many bytes as a manifest may name, or more than any router has.
    for (rows, kind) in [(3, Kind::Corrupt), (64, Kind::Corrupt), (65, Kind::Refused)] {
        let router = Router { rows, ..data.router.clone().unwrap() };
        refused(&whole, &Data { router: Some(router), ..data.clone() }, kind);
    }
    fs::remove_file(&path).unwrap();
    assert_eq!(Dataset::open(&out, &data).unwrap_err().kind(), Kind::Missing);
    let without = Dataset::open(&out, &Data { router: None, ..data }).unwrap();
    assert!(without.routing().is_none() && row_shares(&without).unwrap().is_empty());
}

#[test]
fn data_7_a_router_comes_from_a_stranger() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("corpus");
    let data = packed(&out, 5, 64).unwrap();
    let source = || Dataset::open(&out, &data).unwrap();
    assert_eq!(source().data(), data);
    assert_eq!(source().chunks(DataFile::Router, 1, 9).unwrap().len(), 5 * 1028 - 4096);
    let copy = directory.path().join("copy");
    let error = Stranger::of(source(), Some(DataFile::Router)).brings(&copy, &data).unwrap_err();
    assert_eq!((error.kind(), error.path()), (Kind::Corrupt, copy.join(ROUTER).as_path()));
    assert!(!copy.exists());
    let brought = Stranger::of(source(), None).brings(&copy, &data).unwrap();
    assert_eq!(brought.routing().unwrap().router(), data.router.clone().unwrap());
    assert_eq!(brought.held(), data.all_bytes());
    assert_eq!(described(&copy).unwrap(), data);
    Dataset::open(&copy, &data).unwrap();
}

#[test]
fn data_9_a_windows_row_follows_from_the_tokens_before_it() {
    let corpus = Dataset::of_bytes(vec![1, 1, 2, 2, 2, 9, 1, 1, 1], vec![2, 2, 9, 9, 9])
        .with_router(Routing::new(2, table()));
    let rows = |open: fn(Row) -> bool| -> Vec<Option<u16>> {
        (0..5).map(|window| corpus.row_of(window, 2, open).unwrap().map(|row| row.0)).collect()
    };
    // Before them stand nothing, 1 1, 2 2, 2 9 and 1 1. After 2 9, rows 1 and 2 are equal.
    assert_eq!(rows(|_| true), [Some(2), Some(0), Some(1), Some(1), Some(0)]);
    assert_eq!(rows(|row| row != Row(0)), [Some(2), Some(2), Some(1), Some(1), Some(2)]);
    assert_eq!(rows(|_| false), [None; 5]);
    // No further than two tokens back.
    let text = [2, 2, 2, 2, 1, 1];
    assert_eq!(corpus.routing().unwrap().row(&text, |_| true), Some(Row(0)));
    assert_eq!(corpus.routing().unwrap().ranked(&text), [0, 2, 1].map(Row));
    assert_eq!(corpus.routing().unwrap().ranked(&[]), [2, 0, 1].map(Row));
    // Beyond the end, what is left of the text.
    assert_eq!(corpus.row_of(u64::MAX, 2, |_| true).unwrap(), Some(Row(0)));
    let routed = corpus.routed_held_out_windows(2, 9, |_| true).unwrap();
    assert_eq!(routed.iter().map(|window| window.row).collect::<Vec<_>>(), [Some(Row(2)), Some(Row(1))]);
    let tokens: Vec<_> = routed.into_iter().map(|window| window.tokens).collect();
    assert_eq!(tokens, corpus.held_out_windows(2, 9).unwrap());
    let without = Dataset::of_bytes(vec![1; 9], vec![1; 5]);
    assert_eq!(without.row_of(1, 2, |_| true).unwrap(), Some(Row(0)));
    assert_eq!(without.row_of(1, 2, |row| row != Row(0)).unwrap(), None);
}

#[test]
fn data_9_token_numbers_count_modulo_256() {
    let file = TokeniserFile { digest: Digest::default(), bytes: 0, tokens: 1 << 16 };
    let corpus = Dataset {
        train: Committed::new(
            [1u16, 257, 514, 258, 0].iter().flat_map(|token| token.to_le_bytes()).collect(),
        ),
        tokeniser: Tokeniser::File(file),
        ..Dataset::of_bytes(Vec::new(), Vec::new())
    }
    .with_router(Routing::new(2, table()));
    assert_eq!(
        [0, 1, 2].map(|window| corpus.row_of(window, 2, |_| true).unwrap()),
        [2, 0, 1].map(|row| Some(Row(row)))
    );
}

#[test]
fn data_8_a_router_is_read_alone_and_another_is_refused_by_the_name_of_its_file() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("corpus");
    let named = packed(&out, 3, 8).unwrap().router.unwrap();
    let router = open_router(&out, &named).unwrap();
    assert_eq!((router.router(), router.tokens()), (named.clone(), 8));
    let text = [102, 110, 32];
    let (scores, best) = (router.scores(&text), router.ranked(&text)[0]);
    assert!(scores.len() == 3 && scores.iter().all(|score| *score <= scores[best.index()]));
    let path = out.join(ROUTER);
    let refused = |kind| {
        let error = open_router(&out, &named).unwrap_err();
        assert_eq!((error.kind(), error.path()), (kind, &*path), "{error}");
        assert!(error.to_string().contains("copy router.bin from data/"), "{error}");
    };
    let mut file = fs::read(&path).unwrap();
    file[0] ^= 1;
    fs::write(&path, &file).unwrap();
    refused(Kind::Corrupt);
    fs::write(&path, &file[1..]).unwrap();
    refused(Kind::Corrupt);
    fs::remove_file(&path).unwrap();
    refused(Kind::Missing);
}

#[test]
fn a_corpus_without_a_router_is_packed_as_before() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("corpus");
    let data = pack(sources(), held_out(), &out, &mut |_| ()).unwrap();
    assert_eq!((&data.router, described(&out).unwrap()), (&None, data.clone()));
    assert!(!fs::read_to_string(out.join("corpus.txt")).unwrap().contains("\nrow"));
}
