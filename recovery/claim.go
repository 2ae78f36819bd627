package recovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/segment"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/recovery/peers"
)

// claimGeneration reserves revisions and then begins the next generation, if nobody else has. Where the store says what is not believed
// by now, the claim is given up: waiting does not help, and whoever asks it next says what is wrong.
func (r *run) claimGeneration() (Event, Payload) {
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	lost, err := r.claim(ctx)
	switch {
	case errors.Is(err, errNotAllHere):
		return PeersSilent, Payload{Err: err}
	case disbelieved(err):
		return ClaimLost, Payload{Err: err}
	case err != nil:
		return StoreSilent, Payload{Err: err}
	case lost != nil:
		return ClaimLost, Payload{Err: lost}
	}
	r.silent = 0
	return Claimed, Payload{}
}

// claim may be repeated. It is lost if another cluster has begun a generation, or this one has gone on already: then what was
// built is older than that.
func (r *run) claim(ctx context.Context) (lost, err error) {
	wanted := r.position.Generation
	newest, err := r.newest(ctx)
	if err != nil {
		return nil, err
	}
	if newest.Number < wanted.Number {
		if lost, err := r.begin(ctx); lost != nil || err != nil {
			return lost, err
		}
		if newest, err = r.newest(ctx); err == nil && newest.Number < wanted.Number {
			err = fmt.Errorf("%s does not list generation %d yet, which was just begun", r.options.Archive, wanted.Number)
		}
		if err != nil {
			return nil, err
		}
	}
	if newest.Number != wanted.Number || newest.Session != wanted.Session {
		return fmt.Errorf("generation %d was begun meanwhile by somebody else", newest.Number), nil
	}
	head, err := r.options.Archive.Head(ctx, wanted.Number)
	if err == nil && !head.Empty() {
		lost = fmt.Errorf("generation %d has gone on already, up to revision %d", wanted.Number, head.Revision())
	}
	return lost, err
}

// newest is the last generation in the store; the zero value if there is none.
func (r *run) newest(ctx context.Context) (newest archive.Generation, err error) {
	generations, err := r.options.Archive.Generations(ctx)
	if len(generations) > 0 {
		newest = generations[len(generations)-1]
	}
	return newest, err
}

// begin begins the generation, unless another one was faster.
func (r *run) begin(ctx context.Context) (lost, err error) {
	a, wanted := r.options.Archive, r.position.Generation
	for _, ask := range []func(context.Context) (lost, err error){r.wentOn, r.callRoll} {
		if lost, err := ask(ctx); lost != nil || err != nil {
			return lost, err
		}
	}
	if lost, err := r.endParent(ctx); lost != nil || err != nil {
		return lost, err
	}
	err = a.Reserve(ctx, archive.Reservation{
		Cluster: wanted.Cluster, Generation: wanted.Number, Revision: r.position.Reservation, Created: wanted.Created,
	})
	if err == nil || errors.Is(err, store.ErrExists) {
		err = a.BeginGeneration(ctx, wanted)
	}
	if errors.Is(err, store.ErrExists) {
		err = nil
	}
	return nil, err
}

// endParent ends the generation before, so that nothing can be added behind what was read of it. One that has ended already is
// completed. Where its end cannot be believed, nothing can be added to it in order, either.
func (r *run) endParent(ctx context.Context) (lost, err error) {
	a, wanted := r.options.Archive, r.position.Generation
	newest, err := r.newest(ctx)
	if err != nil || newest.Number == 0 || newest.Number >= wanted.Number {
		return nil, err
	}
	head, err := a.Head(ctx, newest.Number)
	if archive.NotVerified(err) {
		return nil, nil
	}
	if err == nil && r.goneOn(head) {
		err = archive.ErrMoved
	}
	if err == nil {
		err = a.End(ctx, newest, head, wanted.Session, segment.Ending{Successor: wanted.Number, Nonce: cmp.Or(wanted.Session, wanted.Cluster), At: wanted.Created})
	}
	switch {
	case errors.Is(err, archive.ErrEnded):
		return nil, nil
	case errors.Is(err, archive.ErrMoved):
		return err, nil
	}
	return nil, err
}

// goneOn tells whether something was added to the generation before since it was read, a sign of life included.
func (r *run) goneOn(head archive.Head) bool {
	return !r.position.Head.IsZero() && head.Position.Compare(r.position.Head) > 0
}

// errNotAllHere is of a roll call in which a member was missing.
var errNotAllHere = errors.New("not every other member has said by now that it has no data of use")

// callRoll asks the others of several once more, as the last thing: while the data were built, or this program did not run, one
// may have come back that has its own.
func (r *run) callRoll(ctx context.Context) (lost, err error) {
	if r.member.Peers == nil {
		return nil, nil
	}
	c := r.member.Peers.Ask(ctx, peers.Self{Holds: peers.Restores, Restore: r.position.Generation.Restore, Brought: true})
	switch c.Listing { //nolint:exhaustive // all others have a cluster
	case peers.Gone, peers.Founding, peers.Asking:
		return nil, nil
	case peers.Unknown:
		return nil, fmt.Errorf("%w: %w", errNotAllHere, cmp.Or(c.Silent, errors.New("one of them has some")))
	default:
		return errors.New("a member is back that has data"), nil
	}
}

// wentOn tells whether what is to be replaced was served since, here, or somewhere else.
func (r *run) wentOn(ctx context.Context) (lost, err error) {
	if now := r.premises(); now != r.position.Premises {
		return fmt.Errorf("when it was built %s; now %s", r.position.Premises, now), nil
	}
	if r.position.Head.IsZero() {
		return nil, nil
	}
	number := r.position.Generation.Number - 1
	head, err := r.options.Archive.Head(ctx, number)
	if err == nil && r.goneOn(head) {
		lost = fmt.Errorf("generation %d has gone on meanwhile, up to revision %d", number, head.Revision())
	}
	return lost, err
}
