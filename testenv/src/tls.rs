//! Certificates for one server: an authority of its own, and a certificate for localhost and 127.0.0.1.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use crate::home::Home;

/// The PEM files of a server with TLS.
#[derive(Clone, Debug)]
pub struct Certificates {
    authority: PathBuf,
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Certificates {
    /// The authority's certificate, which a client has to trust.
    pub fn authority(&self) -> &Path {
        &self.authority
    }

    /// Makes the files in the server's folder.
    pub(crate) fn create(home: &Home) -> Result<Self> {
        let (authority, certificate, key) = pems().context("make certificates")?;
        let authority = home.write("authority.pem", &authority)?;
        // A client under another user reads it too.
        let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        std::fs::set_permissions(&authority, readable).context("open the authority's certificate")?;
        Ok(Self {
            authority,
            certificate: home.write("server.pem", &certificate)?,
            key: home.write("server.key", &key)?,
        })
    }
}

/// The authority's certificate, the server's certificate, and the server's key.
fn pems() -> Result<(String, String, String), rcgen::Error> {
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.distinguished_name.push(DnType::CommonName, "Postrider test authority");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let authority_key = KeyPair::generate()?;
    let authority_pem = authority.self_signed(&authority_key)?.pem();
    let issuer = Issuer::new(authority, authority_key);

    let mut server = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()])?;
    server.distinguished_name.push(DnType::CommonName, "localhost");
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let server_key = KeyPair::generate()?;
    let server_pem = server.signed_by(&server_key, &issuer)?.pem();
    Ok((authority_pem, server_pem, server_key.serialize_pem()))
}
