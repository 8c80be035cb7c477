//! Whether this machine can listen, and whether it reaches a steward.

use std::time::Instant;

use muster_core::manifest::Manifest;
use muster_core::messages::enrol::Ticket;
use muster_net::address::{is_loopback, reachable};
use muster_net::listener::Listener;
use muster_net::seats::ConnectionLimit;
use muster_organise::members::agreed;
use muster_replica::exit::{Exit, Failure};

use super::finding::Finding;

/// Asks a steward for the manifest, over a channel of its own, under a throw-away key: it joins nothing.
pub async fn steward(ticket: &Ticket) -> (Finding, Option<Manifest>) {
    let begun = Instant::now();
    match agreed(ticket).await {
        Ok(manifest) => {
            let milliseconds = begun.elapsed().as_millis();
            let found = format!(
                "opened a channel and sent the manifest of {:?} in {milliseconds} ms",
                manifest.name.to_string()
            );
            (Finding::good("steward", found), Some(manifest))
        }
        Err(failure) => (unreached(&failure), None),
    }
}

fn unreached(failure: &Failure) -> Finding {
    let remedy = match failure.exit {
        Exit::Network => {
            "if it is, and others reach it, look at this machine's firewall, and at its clock, which must be right to a day"
        }
        Exit::Environment => {
            "see to what is said there; if that is the network, this machine has no way to that address"
        }
        _ => "ask the organiser: nobody can take part in this run",
    };
    Finding::care("steward", failure.message.clone(), remedy)
}

/// Whether a port can be had at `HOST:PORT`, and who could dial it.
pub async fn port(wanted: &str) -> Finding {
    // Given back at once.
    let bound = Listener::bind(wanted, ConnectionLimit::default()).await.map(|port| port.local_addr());
    match bound {
        Ok(address) => {
            let own = if address.ip().is_unspecified() {
                reachable(address.is_ipv4()).iter().map(ToString::to_string).collect()
            } else {
                vec![address.ip().to_string()]
            };
            let others: Vec<String> = own.into_iter().filter(|own| !is_loopback(own)).collect();
            let dialled = match others.as_slice() {
                [] => "only this machine can dial it".to_owned(),
                others => format!("this machine's address is {}", others.join(", ")),
            };
            Finding::good("port", format!("{wanted} is free; {dialled}"))
        }
        Err(error) => {
            let Failure { message, .. } = error.into();
            let remedy = "with --listen name an address of this machine and a free port, like 0.0.0.0:7777, unless it is \
                          Muster itself that listens there already";
            Finding::care("port", message, remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_core::ids::{Digest, MemberId, RunId};
    use muster_core::messages::enrol::{Address, Addresses};

    use super::*;

    #[tokio::test]
    async fn a_port_is_free_or_not() {
        let free = port("127.0.0.1:0").await;
        assert!(free.is_good() && free.line().contains("only this machine"), "{free:?}");
        let taken = Listener::bind("127.0.0.1:0", ConnectionLimit::default()).await.unwrap();
        for wanted in [taken.local_addr().to_string(), "192.0.2.1:7777".into(), "nonsense".into()] {
            let finding = port(&wanted).await;
            let line = finding.line();
            assert!(!finding.is_good() && line.contains(&wanted) && line.contains("--listen"), "{line}");
        }
    }

    #[tokio::test]
    async fn a_steward_that_is_not_there_needs_care() {
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let addresses = Addresses::new(vec![Address::new(nobody.to_string()).unwrap()]).unwrap();
        let (run, steward) = (RunId(Digest([1; 32])), MemberId([2; 32]));
        let ticket = Ticket { run, steward, addresses, pass: None };
        let (finding, manifest) = super::steward(&ticket).await;
        assert!(manifest.is_none());
        let line = finding.line();
        assert!(
            !finding.is_good() && line.contains(&nobody.to_string()) && line.contains("organiser"),
            "{line}"
        );
    }
}
