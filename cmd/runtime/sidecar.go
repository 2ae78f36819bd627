package runtime

import (
	"cmp"
	"context"
	"time"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/lifecycle"
	"etcd-wrapper/readiness/metrics"
)

// countedSidecar counts the calls to a sidecar and how its initializations end. The machine asks for the status and for
// initializations one after the other; a configuration may be fetched meanwhile.
type countedSidecar struct {
	lifecycle.Sidecar
	counts *metrics.Metrics
	asked  bootstrap.Mode // for the initialization that runs; empty if none was asked for
}

// Status implements lifecycle.Sidecar.
func (c *countedSidecar) Status(ctx context.Context) (bootstrap.InitializationStatus, error) {
	began := time.Now()
	word, err := c.Sidecar.Status(ctx)
	c.counts.Request("status", time.Since(began), err)
	if err == nil {
		c.heard(word)
	}
	return word, err
}

// heard counts what ended: by a verdict, or because a sidecar that was restarted has forgotten it. There is no default: a
// new word must be given its meaning here, and until then is no verdict.
func (c *countedSidecar) heard(word bootstrap.InitializationStatus) {
	switch word {
	case bootstrap.Progress:
	case bootstrap.New:
		if c.asked != "" {
			c.ended(metrics.Lost)
		}
	case bootstrap.Successful:
		c.ended(metrics.Successful)
	case bootstrap.Failed:
		c.ended(metrics.Failed)
	}
}

func (c *countedSidecar) ended(verdict metrics.Verdict) {
	c.counts.Initialization(cmp.Or(string(c.asked), metrics.Unasked), verdict)
	c.asked = ""
}

// WhyFailed implements lifecycle.Explainer for a sidecar that does; another one says nothing.
func (c *countedSidecar) WhyFailed() error {
	if explainer, is := c.Sidecar.(lifecycle.Explainer); is {
		return explainer.WhyFailed()
	}
	return nil
}

// Trigger implements lifecycle.Sidecar.
func (c *countedSidecar) Trigger(ctx context.Context, mode bootstrap.Mode) error {
	began := time.Now()
	err := c.Sidecar.Trigger(ctx, mode)
	c.counts.Request("trigger", time.Since(began), err)
	if err == nil {
		c.asked = mode
	}
	return err
}

// Config implements lifecycle.Sidecar.
func (c *countedSidecar) Config(ctx context.Context) ([]byte, error) {
	began := time.Now()
	yaml, err := c.Sidecar.Config(ctx)
	c.counts.Request("config", time.Since(began), err)
	return yaml, err
}
