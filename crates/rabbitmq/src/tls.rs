//! TLS to the broker: rustls on ring, the server always verified.

use std::path::Path;
use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::endpoint::TlsFiles;

/// Why there is no configuration; fits "failed to …".
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    #[error("read {file}: {source}")]
    File { file: String, source: rustls_pki_types::pem::Error },
    #[error("read {file}: it holds no certificate")]
    Empty { file: String },
    #[error("find the system's certificate authorities (name one with cacertfile)")]
    NoRoots,
    #[error("use the certificate: {0}")]
    Rustls(#[from] rustls::Error),
}

/// Reads the files; blocking.
pub(crate) fn client_config(files: &TlsFiles) -> Result<Arc<ClientConfig>, TlsError> {
    let mut roots = RootCertStore::empty();
    if let Some(file) = &files.cacertfile {
        for certificate in certificates(file)? {
            roots.add(certificate)?;
        }
    } else {
        // Single certificates of a system's store may be unreadable or odd; the rest are good.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            return Err(TlsError::NoRoots);
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let config = match &files.identity {
        None => builder.with_no_client_auth(),
        Some((certfile, keyfile)) => {
            let key = PrivateKeyDer::from_pem_file(keyfile)
                .map_err(|source| TlsError::File { file: keyfile.display().to_string(), source })?;
            builder.with_client_auth_cert(certificates(certfile)?, key)?
        }
    };
    Ok(Arc::new(config))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let name = || file.display().to_string();
    let certificates = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|source| TlsError::File { file: name(), source })?;
    if certificates.is_empty() { Err(TlsError::Empty { file: name() }) } else { Ok(certificates) }
}
