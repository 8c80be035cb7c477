//! Runs that begin with somebody's checkpoint, as real processes: they go on where it stopped. Nobody takes other
//! parameters than the committed ones, nor a manifest that breaks a rule, nor a run that its memory cannot hold.

use std::fs;
use std::sync::Arc;

use e2e::processes::{Run, wait_for};
use e2e::programs;
use muster_core::codec::{Bytes, List, Real, Text, decode, encode};
use muster_core::ids::{Digest, Height, MemberId, RunId};
use muster_core::manifest::{CommittedFile, DataFile, Manifest, Start};
use muster_core::messages::enrol::Ticket;
use muster_core::messages::evidence::{Evidence, Misconduct, Seal, TwoSeals};
use muster_core::messages::gossip::Head;
use muster_core::messages::wire::{Request, Response};
use muster_core::sign::Identity;
use muster_net::endpoint::Endpoint;
use muster_net::listener::Listener;
use muster_net::seats::ConnectionLimit;
use muster_net::serve::{Unanswered, serve};
use muster_replica::memory;
use muster_store::dataset::{Dataset, committed_parameters};
use muster_store::home::Home;
use tokio::runtime::Runtime;

const MODEL: &str =
    "[model]\nwidth = 32\nlayers = 1\nheads = 2\nkey_value_heads = 1\nhidden = 48\nsequence = 32\n";

/// Settings that say nothing of the model.
fn settings(rounds: u32) -> String {
    format!(
        "[training]\nrounds = {rounds}\nleaves = 8\nleaf_windows = 2\n\
         [optimiser]\nrate = 0.02\nwarmup = 2\nschedule = \"constant\"\n\
         [audit]\nshare = 1.0\nfinal_rounds = 2\n[admission]\nstart_nodes = 2\nstart_verifiers = 1\n"
    )
}

/// Trains with two nodes and a verifier to the end; the loss of each round.
fn train(run: &Run, names: [&str; 3]) -> Vec<f64> {
    let mut steward = run.host();
    let mut verifier = run.watch(names[2], &run.invite("verifier", 1));
    let nodes = run.invite("node", 2);
    let mut first = run.join(names[0], &nodes, &[]);
    let mut second = run.join(names[1], &nodes, &["--kernel", "portable"]);
    for process in [&mut first, &mut second, &mut verifier, &mut steward] {
        assert_eq!(process.wait(), 0, "{}", process.log());
    }
    run.check_end(&names);
    run.events("round").iter().map(|event| event["loss"].as_f64().expect("a loss")).collect()
}

/// Exports the run's newest model, and makes it the beginning of a new run, which takes the old one's place.
fn begin_again(run: &Run, rounds: u32) {
    run.good(&["run", "export", &run.at("run"), "--out", &run.at("model")]);
    fs::rename(run.path("run"), run.path("before")).expect("another name");
    fs::write(run.path("next.toml"), settings(rounds)).expect("a file");
    let (config, data) = (run.at("next.toml"), run.at("corpus"));
    let (init, out) = (run.at("model"), run.at("run"));
    let said =
        run.good(&["run", "new", "--config", &config, "--data", &data, "--init", &init, "--out", &out]);
    assert!(said.contains("it begins with the parameters of"), "{said}");
}

#[test]
fn a_run_begins_where_another_one_ended_and_replays_from_its_archive_alone() {
    let run = Run::packed(programs!(), &format!("{MODEL}{}", settings(14)), None);
    let before = train(&run, ["first", "second", "verifier"]);
    begin_again(&run, 4);
    fs::remove_dir_all(run.path("before")).expect("not needed any more");
    let after = train(&run, ["third", "fourth", "auditor"]);
    let (drawn, last, first) = (before[0], before[13], after[0]);
    assert!(last < drawn - 1.5, "{before:?}");
    assert!((first - last).abs() < 0.4, "{before:?} {after:?}");
    let (run_folder, again) = (run.at("run"), run.at("again"));
    run.good(&["run", "export", &run_folder, "--round", "0", "--out", &again]);
    let [given, taken] = ["model", "again"]
        .map(|folder| fs::read(run.path(folder).join("model.safetensors")).expect("weights"));
    assert!(given == taken, "every bit of every parameter");
    changed_archives_are_refused(&run);
}

/// Nothing but the committed parameters is taken, whatever else is changed to fit them.
fn changed_archives_are_refused(run: &Run) {
    let path = run.path("run/data/parameters.bin");
    let whole = fs::read(&path).expect("given parameters");
    let mut forged = whole.clone();
    forged[4001] ^= 1;
    fs::write(&path, &forged).expect("a file");
    let (code, output) = run.replay();
    assert!(code == 3 && output.contains("parameters.bin: is damaged"), "{code}: {output}");
    let (code, output) = run.muster(&["host", &run.at("run")]);
    assert!(code == 3 && output.contains("parameters.bin: is damaged"), "{code}: {output}");
    let manifest_path = run.path("run/manifest.bin");
    let mut manifest: Manifest = decode(&fs::read(&manifest_path).expect("a manifest")).expect("canonical");
    let honest = manifest.bytes();
    manifest.data.start = Start::Given(committed_parameters(&muster_core::state::reals(&forged)));
    fs::write(&manifest_path, manifest.bytes()).expect("a file");
    let (code, output) = run.replay();
    assert!(code == 1, "another manifest is another run, {code}: {output}");
    let Start::Given(file) = &manifest.data.start else { panic!("given") };
    let short = CommittedFile { bytes: file.bytes - 4, ..file.clone() };
    manifest.data.start = Start::Given(short);
    fs::write(&manifest_path, manifest.bytes()).expect("a file");
    let (code, output) = run.replay();
    assert!(code == 1 && output.contains("data.start.bytes must be four"), "{code}: {output}");
    fs::write(&manifest_path, honest).expect("a file");
    fs::remove_file(&path).expect("a file");
    let (code, output) = run.replay();
    assert!(code == 3 && output.contains("parameters.bin: does not exist"), "{code}: {output}");
    fs::write(&path, &whole).expect("a file");
    assert_eq!(run.replay().0, 0);
}

#[test]
fn a_steward_that_sends_other_parameters_is_believed_by_nobody() {
    let run = Run::packed(programs!(), &format!("{MODEL}{}", settings(2)), None);
    begin_again(&run, 2);
    let words = "the bytes that were sent are not those of the run";
    let lies: [(&str, Lie); 3] = [
        ("flips", |bytes| bytes[777] ^= 1),
        ("shortens", |bytes| bytes.truncate(4096)),
        ("lengthens", |bytes| bytes.push(0)),
    ];
    for (name, lie) in lies {
        let liar = Liar::new(&run, lie);
        let mut joiner = run.join(&format!("{name}-joiner"), &liar.invitation(&run), &[]);
        let mut observer = run.observe(&format!("{name}-observer"), &liar.target);
        for process in [&mut joiner, &mut observer] {
            assert_ne!(process.wait(), 0, "{}", process.log());
            assert!(process.log().contains(words), "{}", process.log());
        }
        for member in ["joiner", "observer"] {
            let held = fs::read(run.path(&format!("{name}-{member}/data/parameters.bin.held")));
            assert!(held.expect("a map of what is there").iter().all(|page| *page == 0), "nothing is kept");
        }
    }
    // The same steward, once it sends what was committed. It tells no more than the files, so nobody waits for an end.
    let honest = Liar::new(&run, |_| ());
    let joiner = run.join("joiner", &honest.invitation(&run), &[]);
    let parameters = |folder| fs::read(run.path(folder).join("data/parameters.bin"));
    let given = parameters("run").expect("given");
    wait_for("the files", || parameters("joiner").is_ok_and(|kept| kept == given));
    drop(joiner);
}

/// Joins, enrols, observes and asks who is there: each ends with this code and these words, and without the text.
fn is_joined_by_nobody(run: &Run, name: &str, liar: &Liar, code: i32, words: &str) {
    let at = |role: &str| format!("{name}-{role}");
    let mut joiner = run.join(&at("node"), &liar.ticket, &[]);
    let mut observer = run.observe(&at("observer"), &liar.target);
    for process in [&mut joiner, &mut observer] {
        assert_eq!(process.wait(), code, "{name}: {}", process.log());
        assert!(process.log().contains(words), "{name}: {}", process.log());
    }
    let verifier = run.at(&at("verifier"));
    let (ended, output) = run.verifier(&["enroll", &liar.ticket, "--data-dir", &verifier]);
    assert!(ended == code && output.contains(words), "{name}: {ended}: {output}");
    for role in ["node", "observer", "verifier"] {
        assert!(!run.path(&at(role)).join("data").exists(), "{name}: a {role} fetched the text");
    }
}

/// What is altered in a manifest.
type Change = fn(&mut Manifest);

#[test]
fn a_manifest_that_breaks_a_rule_is_refused_by_whoever_is_to_join() {
    let run = Run::packed(programs!(), &format!("{MODEL}{}", settings(2)), None);
    let broken: [(&str, Change, &str); 6] = [
        ("heads", |manifest| manifest.model.heads = 3, "model.heads must divide model.width"),
        ("sequence", |manifest| manifest.model.sequence = 1 << 17, "model.sequence"),
        ("vocabulary", |manifest| manifest.model.vocabulary = 255, "model.vocabulary is 255"),
        ("windows", |manifest| manifest.training.leaf_windows = 1025, "training.leaf_windows"),
        ("grid", |manifest| manifest.training.grid_bits = 15, "training.grid_bits"),
        ("beta", |manifest| manifest.optimiser.beta2 = Real::new(1.0).expect("finite"), "optimiser.beta2"),
    ];
    for (name, alter, words) in broken {
        let liar = Liar::altered(&run, alter);
        is_joined_by_nobody(&run, name, &liar, 1, &format!("the manifest: {words}"));
        let (code, output) = run.muster(&["members", &run.at(&format!("{name}-node"))]);
        assert!(code == 1 && output.contains(&format!("the manifest: {words}")), "{code}: {output}");
        let (ticket, kept) = (liar.ticket.clone(), liar.kept(&run, name));
        drop(liar);
        let (code, output) = run.verifier(&["enroll", &ticket, "--data-dir", &kept]);
        assert!(code == 1 && output.contains(&format!("the manifest: {words}")), "{code}: {output}");
        let (code, output) = run.verifier(&["check", &two_heads(&run), "--run", &kept]);
        assert!(code == 3 && output.contains(&format!("manifest.bin: {words}")), "{code}: {output}");
    }
}

/// A file of evidence that needs nothing but the manifest to be judged.
fn two_heads(run: &Run) -> String {
    let sealed = |byte| {
        let head = Head { height: Height(1), head: Digest([byte; 32]) };
        Seal::Head(Identity::from_secret(&[1; 32]).sign(RunId(Digest([2; 32])), &head))
    };
    let seals = TwoSeals { first: sealed(3), second: sealed(4) };
    fs::write(run.path("two-heads"), encode(&Evidence::Misconduct(Misconduct::Split(seals))))
        .expect("a file");
    run.at("two-heads")
}

#[test]
fn a_run_beyond_this_machines_memory_is_refused_before_anything_is_fetched() {
    if memory::available().is_none() {
        return;
    }
    let run = Run::packed(programs!(), &format!("{MODEL}{}", settings(2)), None);
    let liar = Liar::altered(&run, |manifest| {
        let model = &mut manifest.model;
        (model.width, model.hidden, model.layers, model.heads) = (4096, 16_384, 31, 32);
        (manifest.training.rounds, manifest.retention.states) = (1000, 1000);
    });
    is_joined_by_nobody(&run, "large", &liar, 3, "of memory here");
    let (code, output) = run.muster(&["bench", &liar.ticket]);
    assert!(code == 1 && output.contains("can help   no, because this run takes"), "{code}: {output}");
}

/// Changes the bytes of an answer.
type Lie = fn(&mut Vec<u8>);

/// A steward that hands out a manifest and the text as they are, and something else for the parameters.
struct Liar {
    address: String,
    target: String,
    /// An invitation without the organiser's leave.
    ticket: String,
    manifest: Arc<Manifest>,
    _runtime: Runtime,
}

impl Liar {
    /// Of the run in the folder.
    fn new(run: &Run, lie: Lie) -> Self {
        Self::of(run, |_| (), lie)
    }

    /// Of a run that differs from the one in the folder.
    fn altered(run: &Run, alter: impl FnOnce(&mut Manifest)) -> Self {
        Self::of(run, alter, |_| ())
    }

    fn of(run: &Run, alter: impl FnOnce(&mut Manifest), lie: Lie) -> Self {
        let folder = run.path("run");
        let bytes = fs::read(folder.join("manifest.bin")).expect("a manifest");
        let mut manifest: Manifest = decode(&bytes).expect("canonical");
        let dataset = Arc::new(Dataset::open(&folder.join("data"), &manifest.data).expect("a corpus"));
        alter(&mut manifest);
        let manifest = Arc::new(manifest);
        let identity = Home::open(&folder).and_then(|home| home.identity()).expect("the steward's key");
        let identity = Arc::new(identity);
        let id = manifest.run();
        let runtime = Runtime::new().expect("threads");
        let listener =
            runtime.block_on(Listener::bind("127.0.0.1:0", ConnectionLimit::default())).expect("a port");
        let address = listener.local_addr().to_string();
        let target = format!("{id:#}@{:#}@{address}", identity.id());
        let ticket = ticket(id, identity.id(), &address);
        let handed = manifest.clone();
        let handler = Arc::new(move |_: MemberId, request: Vec<u8>| {
            let (manifest, dataset) = (manifest.clone(), dataset.clone());
            async move {
                let response = match decode(&request) {
                    Ok(Request::Manifest) => Bytes::new(manifest.bytes()).map(Response::Manifest),
                    Ok(Request::Outline(query)) => {
                        let outline = dataset.outline_chunks(query.file, query.first, query.count);
                        Bytes::new(outline).map(Response::Bytes)
                    }
                    Ok(Request::Data(query)) => {
                        let bytes = dataset.chunks(query.file, query.first, query.count);
                        let mut bytes = bytes.map_err(|error| Unanswered::Refused(error.to_string()))?;
                        if query.file == DataFile::Parameters {
                            lie(&mut bytes);
                        }
                        Bytes::new(bytes).map(Response::Bytes)
                    }
                    _ => return Err(Unanswered::Refused("not told".into())),
                };
                response
                    .map(|response| encode(&response))
                    .map_err(|misuse| Unanswered::Refused(misuse.to_string()))
            }
        });
        runtime.spawn(serve(listener, Endpoint::new(id, identity), handler, std::future::pending()));
        Self { address, target, ticket, manifest: handed, _runtime: runtime }
    }

    /// The verifier's directory, as if it had kept the manifest.
    fn kept(&self, run: &Run, name: &str) -> String {
        let folder = format!("{name}-verifier");
        fs::write(run.path(&folder).join("manifest.bin"), self.manifest.bytes()).expect("a file");
        run.at(&folder)
    }

    fn invitation(&self, run: &Run) -> String {
        run.good(&["invite", &run.at("run"), "--role", "node", "--address", &self.address]).trim().to_owned()
    }
}

/// One line to join by, without an invitation.
fn ticket(run: RunId, steward: MemberId, address: &str) -> String {
    let address = Text::new(address.to_owned()).expect("an address");
    let addresses = List::new(vec![address]).expect("one address");
    Ticket { run, steward, addresses, pass: None }.to_line().to_string()
}
