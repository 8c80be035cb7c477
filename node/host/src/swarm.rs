//! The steward's place in the swarm: it spreads what it seals, says where it is, and hears of members that commit twice.

use std::time::Duration;

use muster_core::codec::List;
use muster_core::messages::enrol::Addresses;
use muster_net::swarm::Settings;
use muster_replica::{Gossiping, Misbehaviour};
use muster_roles::steward::StewardInput;
use tokio::sync::mpsc;

use super::driver::Inbound;
use super::recover::Recovered;

/// The port listened on the last time.
const PORT: &str = "gossip";
/// How long the swarm may take to listen.
const PATIENCE: Duration = Duration::from_secs(5);

/// Joins the swarm, on the port of the last time if that is free, and gives its own multiaddresses. `None` when it
/// cannot: a run goes on without.
pub(super) async fn join(
    recovered: &Recovered,
    settings: Option<&Settings>,
) -> Option<(Gossiping, mpsc::Receiver<Misbehaviour>, Vec<String>)> {
    let settings = settings?;
    let Recovered { home, identity, ledger, journal, .. } = recovered;
    let start = |settings: &Settings| Gossiping::start(identity, ledger, settings, Some(journal.clone()));
    let before = home.read_file(PORT).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let again = before.map(|port| on_port(settings, port.trim()));
    // Peers know the port of the last time, but it may be taken by now.
    let started = again.and_then(|again| start(&again).ok()).map_or_else(|| start(settings), Ok);
    let started = started.inspect_err(|error| tracing::warn!("going on without gossip: {error}"));
    let (gossip, findings) = started.ok()?;
    if settings.listen.is_empty() {
        return Some((gossip, findings, Vec::new()));
    }
    let own = gossip.own(PATIENCE).await;
    if let Some(port) = own.first().and_then(|address| address.split("/tcp/").nth(1)?.split('/').next())
        && let Err(error) = home.write_file(PORT, port.as_bytes())
    {
        tracing::warn!("{error}");
    }
    Some((gossip, findings, own))
}

/// The same with this port wherever any port would do.
fn on_port(settings: &Settings, port: &str) -> Settings {
    let fixed = |address: &String| match address.strip_suffix(":0") {
        Some(host) => format!("{host}:{port}"),
        None => address.clone(),
    };
    Settings { listen: settings.listen.iter().map(fixed).collect(), ..settings.clone() }
}

/// Addresses as the table holds them.
pub(super) fn whereabouts(addresses: &[String]) -> Addresses {
    let texts = addresses.iter().filter_map(|address| muster_core::codec::Text::new(address.as_str()).ok());
    List::new(texts.take(muster_core::limits::ADDRESSES).collect()).unwrap_or_default()
}

/// Hands evidence that gossip has brought to the driver.
pub(super) async fn listen(mut findings: mpsc::Receiver<Misbehaviour>, actor: mpsc::Sender<Inbound>) {
    while let Some(finding) = findings.recv().await {
        match finding {
            Misbehaviour::Equivocation(evidence) => {
                if actor.send(Inbound::Input(StewardInput::Proved(Box::new(evidence)))).await.is_err() {
                    return;
                }
            }
            // There is no record for it: whoever holds the key could seal any. A person has to act.
            Misbehaviour::SplitView(split) => {
                tracing::error!(
                    "{split}: somebody else seals with the steward's key, or its folder was copied"
                );
            }
        }
    }
}
