//! Carrying out a command.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use indicatif::{ProgressBar, ProgressStyle};
use muster_compute::{Exact, Machine};
use muster_core::ids::Row;
use muster_core::manifest::Manifest;
use muster_core::messages::enrol::Engagement;
use muster_host::{HostOptions, HostingEnd, PAGE, Ready, host};
use muster_member::bench::{BenchOptions, PATIENCE, bench, guess};
use muster_member::doctor::{DoctorOptions, ExaminedRun, doctor};
use muster_member::{End, Listen};
use muster_net::swarm::Settings;
use muster_organise::checkpoint::Checkpoint;
use muster_organise::create::{CalibrationFile, CreateOptions, Created, Init, create_within, vacant};
use muster_organise::credit::{check, state};
use muster_organise::estimate::Estimate;
use muster_organise::export::{Exported, ending_of, export};
use muster_organise::gguf::export_gguf;
use muster_organise::invite::InviteOptions;
use muster_organise::look::looked_at;
use muster_organise::members::{close_tree, invitation, members};
use muster_organise::pack::{PackOptions, PackedCorpus, pack};
use muster_organise::plan::moved::needed;
use muster_organise::prospect::{prospect, warnings};
use muster_organise::size;
use muster_organise::tokenise::Ending;
use muster_replica::exit::{Exit, Failure, Outcome};
use muster_replica::{disk, invitation as read_invitation, memory, process};
use muster_store::dataset::RouterSize;
use muster_view::export::export as export_pages;
use muster_view::serve::serve as serve_pages;
use muster_view::site::{Purpose, Site};
use muster_view::status::window::METRICS;
use muster_view::words::counted;

use super::arguments::{
    BenchArguments, CreditArguments, DataCommand, DoctorArguments, ExportArguments, HostArguments,
    InviteArguments, JoinArguments, MusterCli, MusterCommand, NewArguments, PackArguments, RunCommand,
    ViewArguments,
};
use super::company::Company;
use super::generate::generate_text;
use super::options::GossipArguments;
use super::output::{say, show};
use super::plan::{glimpse, plan};
use super::runtime::block_on;
use super::status::tell;
use super::workload::{invited, workload};

pub(super) fn act(command: MusterCommand) -> Outcome<Exit> {
    match command {
        MusterCommand::Data(DataCommand::Pack(arguments)) => pack_text(arguments),
        MusterCommand::Run(RunCommand::New(arguments)) => new_run(&arguments),
        MusterCommand::Host(arguments) => host_run(arguments),
        MusterCommand::Invite(arguments) => print_invitation(arguments),
        MusterCommand::Join(arguments) => join_run(arguments),
        MusterCommand::Run(RunCommand::Export(arguments)) => export_model(&arguments),
        MusterCommand::Generate(arguments) => generate_text(&arguments),
        MusterCommand::Bench(arguments) => measure(arguments),
        MusterCommand::Plan(arguments) => plan(arguments),
        MusterCommand::Doctor(arguments) => examine(arguments),
        #[cfg(feature = "rehearse")]
        MusterCommand::Rehearse(command) => {
            let drawn = std::io::stderr().is_terminal();
            muster_rehearse::act(command, drawn, &mut |text| drop(show(text)))
        }
        MusterCommand::Status(arguments) => tell(arguments),
        MusterCommand::View(arguments) => look(&arguments),
        MusterCommand::Members { folder } => {
            show(&block_on(members(&folder))??)?;
            Ok(Exit::Good)
        }
        MusterCommand::Credit(arguments) => state_credit(arguments),
        MusterCommand::CloseTree { folder, member, organiser } => {
            show(&block_on(close_tree(&folder, organiser.organiser_key.as_deref(), &member))??)?;
            Ok(Exit::Good)
        }
        MusterCommand::Id(home) => {
            say(&format!("{:#}", muster_member::leave::id(&home.directory()?)?))?;
            Ok(Exit::Good)
        }
        MusterCommand::Leave(home) => {
            let home = home.directory()?;
            block_on(muster_member::leave::leave(&home))??;
            say("you have left the run")?;
            Ok(Exit::Good)
        }
        MusterCommand::Completions(arguments) => {
            show(&arguments.script(MusterCli::command()))?;
            Ok(Exit::Good)
        }
        MusterCommand::Man(arguments) => {
            let pages = arguments.write(MusterCli::command())?;
            say(&format!("{pages} pages are in {}", arguments.out.display()))?;
            Ok(Exit::Good)
        }
    }
}

fn examine(arguments: DoctorArguments) -> Outcome<Exit> {
    let DoctorArguments { run, listen, home, leaves } = arguments;
    let run = match run {
        None => ExaminedRun::Any,
        Some(path) => match invited(&path)? {
            Some(ticket) => ExaminedRun::Invited(Box::new(ticket)),
            None => ExaminedRun::At(path),
        },
    };
    let data_dir = match &run {
        ExaminedRun::At(folder) if folder.is_dir() && home.data_dir.is_none() => folder.clone(),
        _ => home.directory()?,
    };
    let options = DoctorOptions { run, machine: leaves.machine(), data_dir, listen };
    let examination = block_on(doctor(&options))??;
    show(&examination.text())?;
    Ok(if examination.is_good() { Exit::Good } else { Exit::Negative })
}

fn measure(arguments: BenchArguments) -> Outcome<Exit> {
    let BenchArguments { run, leaves, precision } = arguments;
    let workload = workload(run)?;
    let options = BenchOptions { workload, machine: leaves.machine(), precision, patience: PATIENCE };
    let benchmark = bench(&options)?;
    show(&benchmark.text())?;
    Ok(if benchmark.verdict().is_ok() { Exit::Good } else { Exit::Negative })
}

fn export_model(arguments: &ExportArguments) -> Outcome<Exit> {
    let mut exact = Exact::new(1, None)?;
    let checkpoint = Checkpoint::open(&arguments.folder, arguments.round, &mut exact)?;
    let model = format!("the model before round {}", checkpoint.round);
    if let Some(out) = &arguments.out {
        vacant(out)?;
    }
    if let Some(file) = &arguments.gguf {
        export_gguf(&checkpoint, file)?;
        say(&format!("{model} is in {}", file.display()))?;
    }
    let Some(out) = &arguments.out else { return Ok(Exit::Good) };
    let decodes = checkpoint.manifest.model.decoder().is_some();
    if decodes && ending_of(&checkpoint)?.is_none() {
        say(
            "warning: no token is known to end the texts of this run, so that others will not know where to stop writing",
        )?;
    }
    let exported = export(&checkpoint, arguments.row.map(Row), out)?;
    let (out, all) = (out.display(), checkpoint.rows_of_run());
    match exported {
        Exported::Path(_) if all == 1 => say(&format!("{model} is in {out}"))?,
        Exported::Path(row) if arguments.row.is_some() => {
            say(&format!("{model}, trunk and row {row}, is in {out}"))?;
        }
        Exported::Path(row) => {
            say(&format!(
                "{model}, trunk and row {row}, is in {out}: of its {all} rows {} holds no other",
                arguments.folder.display()
            ))?;
        }
        Exported::Rows(rows) => {
            let rows: Vec<String> = rows.iter().map(ToString::to_string).collect();
            say(&format!(
                "{model} is in {out}: a folder row-N for each of rows {}, and rows.json, which says how the router chooses one",
                rows.join(", ")
            ))?;
        }
    }
    Ok(Exit::Good)
}

fn pack_text(arguments: PackArguments) -> Outcome<Exit> {
    let options = pack_options(arguments);
    let bar = ProgressBar::new(0);
    let style =
        |template| ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    // How much a pipe will give is not known.
    let (whole, endless) = (style("{bar:24} {bytes}/{total_bytes} read"), style("{spinner} {bytes} read"));
    bar.set_style(whole);
    let packed = pack(&options, &mut |done, total| {
        if total == 0 {
            bar.set_style(endless.clone());
        }
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    say_packed(&packed?, &options)
}

fn pack_options(arguments: PackArguments) -> PackOptions {
    let PackArguments { text, held_out, column, format, weights, most, .. } = arguments;
    let router = arguments.rows.map(|rows| RouterSize { rows, tokens: arguments.route_tokens });
    PackOptions {
        text,
        held_out,
        column: Some(column),
        format,
        weights,
        most,
        tokeniser: arguments.tokenizer,
        train_tokeniser: arguments.train_tokenizer,
        end: arguments.end,
        control_words: arguments.control_words,
        router,
        out: arguments.out,
    }
}

fn say_packed(packed: &PackedCorpus, options: &PackOptions) -> Outcome<Exit> {
    let data = &packed.data;
    let texts = [("training", data.bytes, data.root), ("held out", data.held_out_bytes, data.held_out_root)];
    for (name, bytes, root) in texts {
        let windows = (bytes / data.token_bytes()).saturating_sub(1) / 128;
        say(&format!("{name}  {bytes:>12} bytes  {windows:>9} windows of 128  root {root:#}"))?;
    }
    if let Some(router) = options.router {
        let shares: Vec<String> = packed.shares.iter().map(|share| format!("{share:.3}")).collect();
        let (tokens, shares) = (router.tokens, shares.join(" "));
        say(&format!(
            "rows by the {tokens} tokens before a window, with these shares of the windows: {shares}"
        ))?;
    }
    say(&format!("tokens are of {} kinds, {} each", data.kinds(), counted(data.token_bytes(), "byte")))?;
    if let Some(Ending { word, number, said_by }) = &packed.ending {
        say(&format!("each text ends with {word} ({number}), as {said_by} says"))?;
    }
    packed.remarks.iter().try_for_each(|remark| say(remark))?;
    say(&format!(
        "held-out loss of a unigram model {:.3}, of a bigram model {:.3} nats per token",
        packed.unigram, packed.bigram
    ))?;
    say(&format!("next: muster run new --config run.toml --data {} --out myrun", options.out.display()))?;
    Ok(Exit::Good)
}

fn new_run(arguments: &NewArguments) -> Outcome<Exit> {
    let NewArguments {
        config,
        preset,
        data,
        calibration: _,
        beyond_calibration,
        init,
        sequence,
        organiser_key,
        elsewhere,
        out,
    } = arguments;
    let calibration = |path: &PathBuf| CalibrationFile { path: path.clone(), beyond: *beyond_calibration };
    let options = CreateOptions {
        config: config.clone(),
        data: data.clone(),
        calibration: arguments.calibration.as_ref().map(calibration),
        init: init.clone().map(|folder| Init { folder, sequence: *sequence }),
        organiser_key: organiser_key.clone(),
        out: out.clone(),
    };
    let written = preset.map(|preset| preset.write(config, data)).transpose()?;
    // Who hosts and computes elsewhere need not have the memory here.
    let available = if *elsewhere { None } else { memory::available() };
    let created = create_within(&options, available)?;
    let config = config.display();
    if created.wrote_config || written == Some(true) {
        say(&format!("{config} did not exist: wrote it with every setting explained"))?;
    } else {
        say(&format!(
            "the settings are those of {config}, which was there before; --config FILE names others"
        ))?;
    }
    let size = size::parameters(&created.manifest.model);
    say(&format!("run {:#}: {size}, {}", created.run, counted(created.manifest.training.rounds, "round")))?;
    if let Some(init) = init {
        say_init(init, &created)?;
    }
    let estimate = Estimate::of(&created.manifest);
    say(&estimate.text())?;
    say(&format!("{} (`muster bench {}` measures it)", guess(&created.manifest)?, out.display()))?;
    say_memory(&created.manifest)?;
    say_disk(&created.manifest)?;
    let admission = &created.manifest.admission;
    if admission.probation > 0 {
        let nodes = admission.start_nodes;
        say(&format!(
            "newcomers are on probation; the run begins with {} invited with --founder",
            counted(nodes, "node")
        ))?;
    }
    if let Some(key) = organiser_key {
        say(&format!("the organiser's key is in {}: the host needs it for nothing", key.display()))?;
    }
    say(&format!("\n{}", prospect(&created.manifest)))?;
    for warning in warnings(&created.manifest) {
        say(&format!("warning: {warning}"))?;
    }
    say(&glimpse(&created.manifest)?)?;
    say(&format!("next: muster plan {0} --link …, or muster host {0}", out.display()))?;
    Ok(Exit::Good)
}

/// What a run begins with that was given a checkpoint.
fn say_init(folder: &Path, created: &Created) -> Outcome<()> {
    say(&format!("it begins with the parameters of {}", folder.display()))?;
    let sequence = created.manifest.model.sequence;
    match created.context.filter(|context| *context > sequence) {
        Some(context) => say(&format!(
            "windows have {sequence} tokens of the {context} that it knows; --sequence N for others"
        )),
        None => Ok(()),
    }
}

/// What a run takes of the memory of those who take part.
fn say_memory(manifest: &Manifest) -> Outcome<()> {
    let machine = Machine::new(1, None);
    let needs = [
        memory::contributing(manifest, &machine),
        memory::auditing(manifest, &machine),
        memory::hosting(manifest, 1),
        memory::auditing_at_most(manifest, &machine),
    ];
    let [node, verifier, steward, most] = needs.map(|need| memory::shown(need.bytes()));
    say(&format!(
        "on one thread, a node takes about {node} of memory, a verifier {verifier}, the steward {steward}"
    ))?;
    say(&format!("to audit a contribution that is withheld, a verifier takes {most}"))
}

/// What a run takes of the disks of those who take part, until its last round, and of their lines in each.
fn say_disk(manifest: &Manifest) -> Outcome<()> {
    let steward = disk::hosting(manifest, 0);
    let [node, verifier] = [disk::contributing(manifest), disk::following(manifest)].map(|need| need.bytes());
    say(&format!(
        "a node takes about {} of disk, a verifier or an observer {}, the steward {} ({})",
        memory::shown(node),
        memory::shown(verifier),
        memory::shown(steward.bytes()),
        steward.because()
    ))?;
    let (longest, admission) = (disk::longest_ledger(manifest), &manifest.admission);
    say(&format!(
        "that counts the ledger of {}; if all {} places are taken, it takes up to {}",
        counted(admission.start_nodes, "node"),
        admission.most_members,
        memory::shown(longest)
    ))?;
    say(&needed(manifest))
}

fn print_invitation(arguments: InviteArguments) -> Outcome<Exit> {
    let InviteArguments { folder, role, founder, uses, expires, address: addresses, organiser } = arguments;
    let (role, valid_for) = (role.map(Into::into), expires);
    let organiser_key = organiser.organiser_key;
    let options = InviteOptions { folder, role, founder, uses, valid_for, addresses, organiser_key };
    say(&invitation(&options)?.to_line())?;
    Ok(Exit::Good)
}

fn state_credit(arguments: CreditArguments) -> Outcome<Exit> {
    let CreditArguments { home, note, check: statement, run } = arguments;
    match statement {
        Some(line) => say(&format!("true: {}", block_on(check(&line, run.as_deref()))??))?,
        None => {
            let stated = block_on(state(&home.directory()?, &note))??;
            say(&format!("{stated}\n{}", stated.line()))?;
        }
    }
    Ok(Exit::Good)
}

fn host_run(arguments: HostArguments) -> Outcome<Exit> {
    let HostArguments {
        folder,
        listen,
        advertise,
        per_address,
        relay_rate,
        equal_parts,
        keep_aggregates,
        exit_when_done,
        with_node,
        with_verifier,
        show,
        gossip,
        leaves,
    } = arguments;
    let nodes = with_node.unwrap_or(0);
    let company = (nodes > 0 || with_verifier)
        .then(|| Company::new(&folder, nodes, with_verifier, leaves.words()))
        .transpose()?;
    let show = show.options()?;
    let gossip = swarm(gossip, listen.first());
    let options = HostOptions {
        folder: folder.clone(),
        listen,
        advertise,
        per_address: per_address.into(),
        relay_rate,
        equal_parts,
        keep_aggregates,
        exit_when_done,
        progress: std::io::stderr().is_terminal() && !show.board,
        show,
        gossip,
        machine: leaves.machine(),
    };
    let ending = block_on(async {
        let mut members = None;
        let ending = host(options, |ready| {
            say_where(ready);
            if !ready.is_over {
                members = company.map(|company| company.start());
            }
        });
        let ending = ending.await;
        if let Some(members) = members {
            members.part().await;
        }
        ending
    })??;
    match ending {
        HostingEnd::Closed => Ok(Exit::Good),
        HostingEnd::Stopped => {
            let _ = say(&format!("stopped; start again to go on: muster host {}", folder.display()));
            Ok(Exit::Interrupted)
        }
    }
}

/// Says where a run is hosted. It goes on whether or not somebody can read this.
fn say_where(ready: &Ready) {
    let addresses = ready.addresses.join(", ");
    let page = ready.page.iter().map(|page| format!("{PAGE}{page}"));
    let metrics = ready.metrics.iter().map(|address| format!("{METRICS}{address}metrics"));
    let run = if ready.is_over {
        format!("run {:#} is over; it can be read at {addresses}", ready.run)
    } else {
        format!("hosting run {:#} at {addresses}", ready.run)
    };
    page.chain(metrics).chain([run]).for_each(|line| drop(say(&line)));
}

fn look(arguments: &ViewArguments) -> Outcome<Exit> {
    // Files are for others, to whom it is nobody's own.
    let view = looked_at(&arguments.folder, arguments.export.is_none())?;
    if let Some(folder) = &arguments.export {
        view.read_whole().map_err(Failure::environment)?;
        let pages = export_pages(&Site::new(view, Purpose::Files), folder);
        let pages = pages.map_err(|error| Failure::environment(error.to_string()))?;
        say(&format!("{pages} files are in {0}; open {0}/index.html", folder.display()))?;
        return Ok(Exit::Good);
    }
    block_on(async {
        let pages = serve_pages(view, &arguments.web).await.map_err(Failure::environment)?;
        say(&format!("{}   (Ctrl-C ends)", pages.url))?;
        muster_show::progress::interrupted().await;
        Ok(Exit::Good)
    })?
}

fn join_run(arguments: JoinArguments) -> Outcome<Exit> {
    let show = arguments.show.options()?;
    let ticket = read_invitation(&arguments.invitation)?;
    let data_dir = arguments.home.directory()?;
    if let Some(before) = muster_organise::ticket(&data_dir)?.filter(|before| before.run != ticket.run) {
        return Err(Failure::usage(format!(
            "{}: belongs to run {}; name another directory with --data-dir",
            data_dir.display(),
            before.run
        )));
    }
    if arguments.nice {
        // Before any thread is started: each begins with the priority of the one that starts it.
        process::give_way();
    }
    let gossip = swarm(arguments.gossip, arguments.listen.as_ref());
    let listen = match arguments.listen {
        _ if arguments.no_listen => Listen::Nowhere,
        Some(address) => Listen::At(address),
        None => Listen::TowardsSteward,
    };
    let options = muster_member::JoinOptions {
        ticket,
        data_dir,
        name: arguments.name.unwrap_or_default(),
        listen,
        advertise: arguments.advertise,
        relay: !arguments.no_relay,
        progress: std::io::stderr().is_terminal(),
        show,
        gossip,
        machine: arguments.leaves.machine(),
        bounds: arguments.bounds.bounds(),
        restraint: arguments.restraint.restraint(),
        engagement: if arguments.no_leaves { Engagement::Supports } else { Engagement::Trains },
    };
    match block_on(muster_member::join(options))? {
        Ok(End::Closed { leaves }) => {
            say(&format!("the run is over; {leaves} of your leaves counted. Thank you."))?;
            Ok(Exit::Good)
        }
        Ok(End::Left) => {
            say("you have left the run")?;
            Ok(Exit::Good)
        }
        Ok(End::Interrupted) => {
            let _ = say("stopped; the same command goes on");
            Ok(Exit::Interrupted)
        }
        Err(error) => Err(error.into()),
    }
}

/// Where to gossip: as said, or on a free port of the address listened on, if that is a number; else only dialling.
fn swarm(arguments: GossipArguments, beside: Option<&String>) -> Option<Settings> {
    let beside = || Some(SocketAddr::new(beside?.parse::<SocketAddr>().ok()?.ip(), 0).to_string());
    let listen = arguments.gossip.or_else(beside).into_iter().collect();
    (!arguments.no_gossip).then(|| Settings { listen, ..Settings::default() })
}
