package metrics

import (
	"crypto/x509"
	"encoding/pem"
	"os"

	"github.com/prometheus/client_golang/prometheus"
)

var expiry = desc("certificate_expiry_timestamp_seconds",
	"When the certificate ends, or the first of a bundle, in seconds since 1970.", "certificate")

// certificates tells when certificate files expire, as the files are at each scrape. One that can't be read is left out.
type certificates struct{ files func() map[string]string }

// Describe implements prometheus.Collector.
func (certificates) Describe(to chan<- *prometheus.Desc) { to <- expiry }

// Collect implements prometheus.Collector.
func (c certificates) Collect(to chan<- prometheus.Metric) {
	for name, path := range c.files() {
		if ends, ok := earliestEnd(path); ok {
			to <- prometheus.MustNewConstMetric(expiry, prometheus.GaugeValue, ends, name)
		}
	}
}

func earliestEnd(path string) (seconds float64, ok bool) {
	content, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			continue
		}
		if ends := float64(certificate.NotAfter.Unix()); !ok || ends < seconds {
			seconds, ok = ends, true
		}
	}
	return seconds, ok
}
