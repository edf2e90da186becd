//! The sslmode words against certificates that we make, in memory.

use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::{SslMode, TlsSettings};

/// PEM files in a folder that goes with the value.
struct Files(PathBuf);

impl Files {
    fn new(test: &str) -> Files {
        let folder = std::env::temp_dir().join(format!("postrider-tls-{}-{test}", std::process::id()));
        std::fs::create_dir(&folder).expect("a fresh folder");
        Files(folder)
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("write a file");
        path.display().to_string()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A certificate that signs itself: an authority, which may also be a server.
fn authority(name: &str) -> (CertificateParams, KeyPair, String) {
    let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a good name");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let pem = params.self_signed(&key).expect("a certificate").pem();
    (params, key, pem)
}

fn signed(name: &str, issuer: &Issuer<'_, KeyPair>) -> (String, KeyPair) {
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec![name.to_owned()]).expect("a good name");
    (params.signed_by(&key, issuer).expect("a certificate").pem(), key)
}

fn der(pem: &str) -> CertificateDer<'static> {
    rustls_pki_types::pem::PemObject::from_pem_slice(pem.as_bytes()).expect("a certificate")
}

fn server(pem: &str, key: &KeyPair, clients: Option<&str>) -> TlsAcceptor {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .expect("versions");
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut roots = rustls::RootCertStore::empty();
            roots.add(der(authority)).expect("a root");
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().expect("a verifier"))
        }
    };
    let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
    TlsAcceptor::from(Arc::new(builder.with_single_cert(vec![der(pem)], key).expect("a server")))
}

/// Both ends of a handshake; an alert of the server comes with the first read.
async fn handshake(settings: &TlsSettings, acceptor: &TlsAcceptor, name: &str) -> Result<(), String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let config = settings.client_config().map_err(|e| e.to_string())?;
    let (near, far) = tokio::io::duplex(64 * 1024);
    let name = ServerName::try_from(name.to_owned()).expect("a good name");
    let client = async {
        let mut stream = TlsConnector::from(config).connect(name, near).await.map_err(|e| e.to_string())?;
        stream.read_u8().await.map_err(|e| e.to_string())
    };
    let server = async {
        let mut stream = acceptor.accept(far).await?;
        stream.write_u8(1).await?;
        stream.flush().await
    };
    let (client, server) = tokio::join!(client, server);
    client?;
    server.map_err(|e| e.to_string())
}

fn settings(mode: SslMode, root: Option<&str>) -> TlsSettings {
    TlsSettings { mode, root: root.map(str::to_owned), ..TlsSettings::default() }
}

#[tokio::test]
async fn each_mode_asks_what_libpq_asks() {
    let files = Files::new("modes");
    let (params, key, pem) = authority("authority");
    let root = files.write("root.crt", &pem);
    let other = files.write("other.crt", &authority("other").2);
    let (certificate, key) = signed("db.example", &Issuer::new(params, key));
    let server = server(&certificate, &key, None);
    let cases = [
        (SslMode::VerifyFull, Some(&root), "db.example", true),
        (SslMode::VerifyFull, Some(&root), "elsewhere.example", false),
        (SslMode::VerifyFull, Some(&other), "db.example", false),
        (SslMode::VerifyCa, Some(&root), "elsewhere.example", true),
        (SslMode::VerifyCa, Some(&other), "db.example", false),
        (SslMode::Require, Some(&root), "elsewhere.example", true),
        (SslMode::Require, Some(&other), "db.example", false),
        (SslMode::Require, None, "elsewhere.example", true),
        (SslMode::Prefer, None, "elsewhere.example", true),
    ];
    for (mode, root, name, trusted) in cases {
        let result = handshake(&settings(mode, root.map(String::as_str)), &server, name).await;
        assert_eq!(result.is_ok(), trusted, "{mode:?} {root:?} {name}: {result:?}");
    }
}

/// What PostgreSQL's manual tells one to make: `openssl req -x509`, which says `CA:TRUE`.
#[tokio::test]
async fn a_server_that_signs_itself_is_trusted_only_by_name_of_that_certificate() {
    let files = Files::new("itself");
    let (_, key, pem) = authority("db.example");
    let root = files.write("root.crt", &pem);
    let twin = files.write("twin.crt", &authority("db.example").2);
    let server = server(&pem, &key, None);
    for (mode, root, name, trusted) in [
        (SslMode::VerifyFull, &root, "db.example", true),
        (SslMode::VerifyFull, &root, "elsewhere.example", false),
        (SslMode::VerifyCa, &root, "elsewhere.example", true),
        (SslMode::VerifyCa, &twin, "db.example", false),
    ] {
        let result = handshake(&settings(mode, Some(root)), &server, name).await;
        assert_eq!(result.is_ok(), trusted, "{mode:?} {root} {name}: {result:?}");
    }
}

#[tokio::test]
async fn a_client_certificate_is_shown() {
    let files = Files::new("client");
    let (params, key, pem) = authority("authority");
    let root = files.write("root.crt", &pem);
    let issuer = Issuer::new(params, key);
    let (certificate, key) = signed("db.example", &issuer);
    let server = server(&certificate, &key, Some(&pem));
    let (client, client_key) = signed("postrider_relay", &issuer);
    let without = settings(SslMode::VerifyFull, Some(&root));
    assert!(handshake(&without, &server, "db.example").await.is_err());
    let with = TlsSettings {
        certificate: Some(files.write("client.crt", &client)),
        key: Some(files.write("client.key", &client_key.serialize_pem())),
        ..settings(SslMode::VerifyFull, Some(&root))
    };
    assert_eq!(handshake(&with, &server, "db.example").await, Ok(()));
    let no_key = TlsSettings { key: Some(root.clone()), ..with };
    assert!(no_key.client_config().is_err());
}
