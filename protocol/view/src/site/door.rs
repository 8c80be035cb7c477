//! How an auditor begins: the line that follows the run, checking everything, without a membership.

use std::net::SocketAddr;

use muster_store::regular;

use super::Site;

/// Where the steward can be dialled, one address a line, in the folder from which it hosts.
const ADDRESSES: &str = "address";
/// Where this program does not know that.
const UNKNOWN: &str = "HOST:PORT";

impl Site {
    /// The command that follows the run into a folder DIR, which then has what evidence is examined with.
    pub(super) fn observe_line(&self) -> String {
        let manifest = &self.view().manifest;
        let folder = self.view().folder.as_ref();
        let listed =
            folder.and_then(|folder| regular::text(&folder.join(ADDRESSES), regular::TEXT_BYTES).ok());
        let address = listed.as_deref().and_then(dialled).unwrap_or(UNKNOWN);
        format!(
            "muster-verifier observe {:#}@{:#}@{address} --data-dir DIR\n",
            manifest.run(),
            manifest.steward
        )
    }
}

/// The first address that others can dial, or else that this machine can. Those that begin with a slash are the swarm's.
fn dialled(listed: &str) -> Option<&str> {
    let channels = || listed.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('/'));
    let local = |line: &&str| line.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_loopback());
    channels().find(|line| !local(line)).or_else(|| channels().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_auditor_is_sent_where_others_can_dial() {
        let listed = "127.0.0.1:7\n10.0.0.5:7\n/ip4/10.0.0.5/tcp/8/p2p/x\n";
        assert_eq!(dialled(listed), Some("10.0.0.5:7"));
        assert_eq!(dialled("[::1]:7\n/ip4/10.0.0.5/tcp/8\n"), Some("[::1]:7"));
        assert_eq!(dialled("training.example.org:7777\n"), Some("training.example.org:7777"));
        assert_eq!(dialled("\n"), None);
    }
}
