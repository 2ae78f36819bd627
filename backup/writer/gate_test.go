package writer

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"

	shared "etcd-wrapper/member/maintenance"
)

// refusing is a gate that somebody tries to close while a full holds it.
type refusing struct {
	shared.Gate
	told chan string
}

func (r *refusing) Begin(ctx context.Context, what string) (func(), error) {
	end, err := r.Gate.Begin(ctx, what)
	_, busy := r.Close("a defragmentation")
	r.told <- busy.Error()
	return end, err
}

func TestADefragmentationIsToldThatItWaitsForAFullBackup(t *testing.T) {
	s := newStand(t)
	gate := &refusing{told: make(chan string, 1)}
	s.options.Gate = gate
	s.run()
	assert.Regexp(t, `^the database is being read: wait for the end of a full backup \(since [0-9:]+Z\)$`, <-gate.told)
}
