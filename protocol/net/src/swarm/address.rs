//! Addresses as people write them, and as libp2p does.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use muster_core::error::Misuse;

/// Reads `IP:PORT` or a multiaddress.
///
/// # Errors
/// [`Misuse`] saying what is expected.
pub(super) fn listened(text: &str) -> Result<Multiaddr, Misuse> {
    if let Ok(socket) = text.parse::<SocketAddr>() {
        return Ok(Multiaddr::from(socket.ip()).with(Protocol::Tcp(socket.port())));
    }
    let parsed = text.parse().ok().filter(on_tcp);
    parsed.ok_or_else(|| Misuse("gossip needs IP:PORT or /ip4/IP/tcp/PORT".into()))
}

/// Reads the multiaddress of a peer that can be dialled, its peer id included.
pub(super) fn dialled(text: &str) -> Option<(PeerId, Multiaddr)> {
    let address: Multiaddr = text.parse().ok().filter(on_tcp)?;
    let Some(Protocol::P2p(peer)) = address.iter().last() else { return None };
    Some((peer, address))
}

/// The IP address at the beginning; for one that has none, which this transport never gives, the unspecified one.
pub(super) fn ip(address: &Multiaddr) -> IpAddr {
    match address.iter().next() {
        Some(Protocol::Ip4(ip)) => ip.into(),
        Some(Protocol::Ip6(ip)) => ip.to_canonical(),
        _ => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Where an address leads, if this swarm's transport can dial it.
pub(super) fn socket(address: &Multiaddr) -> Option<SocketAddr> {
    let mut parts = address.iter().skip(1);
    let Some(Protocol::Tcp(port)) = parts.next().filter(|_| on_tcp(address)) else { return None };
    Some(SocketAddr::new(ip(address), port))
}

/// Whether an address is one that this swarm's transport can dial.
pub(super) fn on_tcp(address: &Multiaddr) -> bool {
    let mut parts = address.iter();
    matches!(parts.next(), Some(Protocol::Ip4(_) | Protocol::Ip6(_)))
        && matches!(parts.next(), Some(Protocol::Tcp(_)))
        && matches!(parts.next(), None | Some(Protocol::P2p(_)))
        && parts.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_write_sockets_and_multiaddresses() {
        assert_eq!(listened("127.0.0.1:80").unwrap().to_string(), "/ip4/127.0.0.1/tcp/80");
        assert_eq!(listened("[::1]:0").unwrap().to_string(), "/ip6/::1/tcp/0");
        assert_eq!(listened("/ip4/0.0.0.0/tcp/1").unwrap().to_string(), "/ip4/0.0.0.0/tcp/1");
        for wrong in
            ["", "localhost:80", "/ip4/1.2.3.4/udp/1", "/dns4/example.org/tcp/1", "/ip4/1.2.3.4/tcp/1/tcp/2"]
        {
            assert!(listened(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_address_leads_to_a_socket() {
        let peer = PeerId::random();
        let of = |text: &str| socket(&text.parse().unwrap());
        assert_eq!(of("/ip4/10.0.0.1/tcp/7"), Some("10.0.0.1:7".parse().unwrap()));
        assert_eq!(
            of(&format!("/ip6/::ffff:10.0.0.1/tcp/7/p2p/{peer}")),
            Some("10.0.0.1:7".parse().unwrap())
        );
        assert_eq!(of("/ip4/10.0.0.1/udp/7"), None);
        assert_eq!(of("/dns4/example.org/tcp/7"), None);
        assert_eq!(ip(&"/ip6/2001:db8::1/tcp/7".parse().unwrap()), "2001:db8::1".parse::<IpAddr>().unwrap());
    }

    #[test]
    fn a_peer_to_dial_has_a_name() {
        let peer = PeerId::random();
        let address = format!("/ip4/127.0.0.1/tcp/80/p2p/{peer}");
        assert_eq!(dialled(&address).unwrap().0, peer);
        for wrong in [
            "/ip4/127.0.0.1/tcp/80",
            "127.0.0.1:80",
            &format!("/p2p/{peer}"),
            &format!("{address}/p2p-circuit"),
        ] {
            assert!(dialled(wrong).is_none(), "{wrong}");
        }
    }
}
