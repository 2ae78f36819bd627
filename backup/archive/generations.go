package archive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
)

// Cluster is the cluster manifest: whose a store is. It is created once, and every statement in the store names the same cluster.
type Cluster struct {
	format.Heading
	Cluster string    `json:"cluster"`                // made up when the store was founded: 128 random bits, hexadecimal
	Owner   string    `json:"owner"`                  // who founded it, NAMESPACE/NAME
	Etcd    string    `json:"etcd_cluster,omitempty"` // etcd's cluster id, hexadecimal, for people; empty if it is not known
	Created time.Time `json:"created"`
}

// Generation is the history of a cluster between two restores, or an adoption.
type Generation struct {
	format.Heading
	Number         int       `json:"number"`                 // from 1 on
	Cluster        string    `json:"cluster"`                // the store's
	Owner          string    `json:"owner"`                  // whose the cluster is from here on, NAMESPACE/NAME
	Etcd           string    `json:"etcd_cluster,omitempty"` // etcd's cluster id, hexadecimal, for people; every restore makes a new one
	Parent         int       `json:"parent"`                 // the generation that was restored; 0 for none
	ParentRevision int64     `json:"parent_revision"`        // and up to where; 0 for none
	Restore        string    `json:"restore,omitempty"`      // the id of the restore that was asked for; none if data had been lost
	Restored       []string  `json:"restored,omitempty"`     // the ids of restores before that one, whose generations may be gone by now
	Adopted        []string  `json:"adopted,omitempty"`      // the owners that have taken the store by --adopt, in this generation or before
	Session        string    `json:"session,omitempty"`      // of the process that began it: random, hexadecimal
	Created        time.Time `json:"created"`

	signed bool
}

const (
	clusterKind    = "cluster"
	generationKind = "generation"
)

// Found writes the cluster manifest, unless there is one, and the generation of a number, unless there is any, and returns the cluster's
// newest generation. ErrForeign says that the store is another cluster's; then nothing was written. It may be repeated, and called
// by several members at once.
func (w *Writer) Found(ctx context.Context, cluster Cluster, number int) (Generation, error) {
	there, err := w.FoundCluster(ctx, cluster)
	if err != nil {
		return Generation{}, err
	}
	all, err := w.reader.Generations(ctx)
	begins := err == nil && len(all) == 0 || number == 1 && errors.Is(err, errFirstNameless)
	if begins && there.Cluster == cluster.Cluster {
		err = w.BeginGeneration(ctx, Generation{Number: number, Cluster: there.Cluster, Owner: cluster.Owner, Etcd: cluster.Etcd, Created: cluster.Created})
		if err == nil || errors.Is(err, store.ErrExists) {
			all = make([]Generation, 1)
			all[0], err = w.reader.Generation(ctx, number) // whether or not it is listed yet
		}
	}
	if err != nil {
		return Generation{}, err
	}
	return w.reader.newestOf(all, there.Cluster, cluster.Cluster)
}

// FoundCluster writes the cluster manifest, unless there is one, and returns what is there: of several that found a store at once, one
// does. A lost reply is resolved by that, too.
func (w *Writer) FoundCluster(ctx context.Context, cluster Cluster) (Cluster, error) {
	there, err := w.reader.Cluster(ctx)
	if !errors.Is(err, store.ErrNotFound) {
		return there, err
	}
	all, err := w.reader.Generations(ctx)
	if err != nil {
		return Cluster{}, err
	}
	if len(all) > 0 { // nothing but the manifest is missing
		if _, err := w.reader.newestOf(all, "", cluster.Cluster); err != nil {
			return Cluster{}, err
		}
		cluster.Cluster, cluster.Owner, cluster.Etcd = all[0].Cluster, all[0].Owner, all[0].Etcd
	}
	cluster.Heading, cluster.Created = heading(clusterKind), cluster.Created.UTC().Truncate(time.Second)
	err = w.state(ctx, ClusterName, cluster)
	if errors.Is(err, store.ErrExists) {
		return w.reader.Cluster(ctx)
	}
	return cluster, err
}

// BeginGeneration writes a generation. store.ErrExists says that its number is another's: of two that complete one end, one begins what
// follows. It may be repeated within a session. Heading is filled in.
func (w *Writer) BeginGeneration(ctx context.Context, generation Generation) error {
	generation.Heading = heading(generationKind)
	generation.Created = generation.Created.UTC().Truncate(time.Millisecond) // it tells those of one cluster id in two stores apart
	err := w.state(ctx, generationName(generation.Number), generation)
	if errors.Is(err, store.ErrExists) && generation.Session != "" {
		if there, failed := w.reader.Generation(ctx, generation.Number); failed == nil && there.Session == generation.Session {
			return nil
		}
	}
	return err
}

// MayAdd is an ErrUnsigned if this process must not add anything to a generation that was read. Ask it before anything is written.
func (w *Writer) MayAdd(to Generation) error {
	if to.signed && !w.reader.keys.Signs() {
		return fmt.Errorf("generation %d in %s is %w", to.Number, w.reader.store, ErrUnsigned)
	}
	return nil
}

// Cluster returns the cluster manifest. store.ErrNotFound says that nothing was ever kept here.
func (r *Reader) Cluster(ctx context.Context) (Cluster, error) {
	var cluster Cluster
	_, err := r.statement(ctx, ClusterName, clusterKind, &cluster)
	if err == nil && cluster.Cluster == "" {
		err = r.damaged(ClusterName)
	}
	return cluster, err
}

// Still looks whether a generation that was there is there, by names alone, since a listing may lack what there is. store.ErrNotFound
// says that it, or the cluster manifest, is gone, and ErrForeign that another cluster has begun in its place.
func (r *Reader) Still(ctx context.Context, generation Generation) error {
	if _, err := r.Cluster(ctx); err != nil {
		return err
	}
	there, err := r.Generation(ctx, generation.Number)
	if err != nil {
		return err
	}
	_, err = r.newestOf([]Generation{there}, "", generation.Cluster)
	return err
}

// newestOf is a cluster's newest generation. Where there is none at all, the store is the founder's.
func (r *Reader) newestOf(all []Generation, founder, cluster string) (Generation, error) {
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].Cluster == cluster {
			return all[i], nil
		}
	}
	if len(all) > 0 {
		founder = all[len(all)-1].Cluster
	}
	return Generation{}, fmt.Errorf("%s is %w: it was last written by cluster %s, and this is %s", r.store, ErrForeign, founder, cluster)
}

// Lineage is what a store says of its generations.
type Lineage struct {
	Generations []Generation // the history, oldest first
	Next        int          // the number for a generation that follows the newest: the first that nothing in the store has
	Strays      []error      // one for each generation that nothing leads to, which names it
}

// Newest returns the newest generation of the history; the zero value if there is none.
func (l Lineage) Newest() (newest Generation) {
	if len(l.Generations) > 0 {
		newest = l.Generations[len(l.Generations)-1]
	}
	return newest
}

// Generations returns the history of the store, as Lineage does.
func (r *Reader) Generations(ctx context.Context) ([]Generation, error) {
	lineage, err := r.Lineage(ctx)
	return lineage.Generations, err
}

// Lineage reads the generations of the store. One belongs to the history if it is the oldest there is, or if the sequence of the one before
// has ended: whoever may write to a store can create a generation.json, but the end of a sequence is its next object, which its writer creates
// itself as long as it runs. A generation that nothing leads to is a stray. It changes nothing, unless there are backups in it that can be
// verified: then the object that ends the generation before is missing, and the error is a format.ErrDamaged. ErrNameless reports that the
// newest generation has backups and no generation.json.
func (r *Reader) Lineage(ctx context.Context) (Lineage, error) {
	lineage, err := r.readLineage(ctx)
	if errors.Is(err, errUnlisted) { // or it was created meanwhile
		return r.readLineage(ctx)
	}
	return lineage, err
}

func (r *Reader) readLineage(ctx context.Context) (l Lineage, err error) {
	taken, nameless := map[int]bool{}, 0
	for number := 0; ; {
		if number, err = r.generationAfter(ctx, number); err != nil {
			return Lineage{}, err
		}
		if number == 0 {
			break
		}
		taken[number] = true
		generation, err := r.Generation(ctx, number)
		if err != nil && !errors.Is(err, store.ErrNotFound) && !NotVerified(err) {
			return Lineage{}, err
		}
		stray, failed := r.stray(ctx, l.Newest(), number, err == nil)
		switch {
		case failed != nil:
			return Lineage{}, failed
		case stray != nil:
			l.Strays = append(l.Strays, stray)
		case errors.Is(err, store.ErrNotFound):
			nameless = number // something of it is left
		case err != nil:
			return Lineage{}, err
		default:
			l.Generations = append(l.Generations, generation)
		}
	}
	for l.Next = l.Newest().Number + 1; taken[l.Next]; {
		l.Next++
	}
	return l, cmp.Or(r.checkNames(ctx, l.Generations, nameless), r.checkListing(ctx, l.Newest().Number+1, taken))
}

// stray returns an error that names a generation to which the newest of the history does not lead; nil if it may follow. Where nothing is stored
// in the newest one, as while it is deleted, one may that was stated; where its end cannot be verified, any may.
func (r *Reader) stray(ctx context.Context, newest Generation, number int, stated bool) (stray, err error) {
	if newest.Number == 0 {
		return nil, nil
	}
	switch ended, err := r.ended(ctx, newest); {
	case err != nil:
		return nil, err
	case ended.stored && number >= ended.successor, !ended.stored && stated:
		return nil, nil
	}
	stray = fmt.Errorf("%s in %s is ignored: generation %d has not ended", GenerationPrefix(number), r.store, newest.Number)
	head, err := r.Head(ctx, number)
	switch {
	case err == nil && !head.Empty():
		return nil, r.named(GenerationPrefix(number), fmt.Errorf("%w: it has backups, although nothing in the store ends generation %d: restore the object "+
			"that does from an earlier version of the bucket, or delete this generation if none of your clusters has created it", format.ErrDamaged, newest.Number))
	case err == nil || NotVerified(err):
		return stray, nil
	}
	return nil, err
}

// ended returns how a generation ends.
func (r *Reader) ended(ctx context.Context, generation Generation) (endOf, error) {
	if known, is := r.successors.Load(generation.Number); is && known.(endOf).generation == generation.id() {
		return known.(endOf), nil
	}
	end := endOf{generation: generation.id(), successor: mostGenerations + 1, stored: true}
	head, err := r.Head(ctx, generation.Number)
	switch {
	case err == nil && head.Ending() != nil:
		end.successor = head.Ending().Successor
		r.successors.Store(generation.Number, end)
	case NotVerified(err), err == nil && head.Damaged != nil:
		return endOf{stored: true}, nil // it may have ended
	case err == nil:
		end.stored = !head.Empty()
	}
	return end, err
}

// endOf is the end of a generation. An end that was found is final.
type endOf struct {
	generation string
	successor  int  // from which number on a generation may follow
	stored     bool // something is stored in the generation
}

// id tells a generation from another one of its number in a store that was emptied meanwhile.
func (g Generation) id() string { return g.Cluster + " " + g.Session + " " + g.Created.String() }

// errFirstNameless is the ErrNameless of a store that has a cluster.json, which says whose the first generation is.
var errFirstNameless = fmt.Errorf("%w", ErrNameless)

// checkNames returns an ErrNameless if the newest generation of which there is something is that one, and has backups. Of an older one
// something may be left after it was deleted.
func (r *Reader) checkNames(ctx context.Context, all []Generation, nameless int) error {
	if nameless == 0 || len(all) > 0 && nameless < all[len(all)-1].Number {
		return nil
	}
	if reported, err := r.reportedBy(ctx, nameless); err != nil || reported == 0 {
		return err
	}
	why := ErrNameless
	if len(all) == 0 {
		if _, err := r.Cluster(ctx); Unusable(err) {
			return nil // nothing says whose it is, and that is reported
		}
		if nameless == 1 {
			why = errFirstNameless
		}
	}
	return r.named(generationName(nameless), why)
}

// errUnlisted says that something is there which a listing lacks.
var errUnlisted = errors.New("which is there")

// checkListing returns an errUnlisted, and a store.ErrUnavailable, if the next generation is there although no listing has it: nothing is
// created on the strength of such a listing.
func (r *Reader) checkListing(ctx context.Context, next int, listed map[int]bool) error {
	if listed[next] {
		return nil
	}
	_, err := r.Generation(ctx, next)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil
	case err == nil || NotVerified(err):
		return &store.Unavailable{Cause: fmt.Errorf("its listing lacks %s, %w", generationName(next), errUnlisted)}
	default:
		return err
	}
}

// mostUnlisted is up to which number FindUnlisted looks for a generation.
const mostUnlisted = 100

// FindUnlisted returns a store.ErrUnavailable if there is a generation where a listing shows none: a store may list late, by minutes. It asks for
// each by its name, and is for a store that names a cluster.
func (r *Reader) FindUnlisted(ctx context.Context) error {
	var found [mostUnlisted]error
	err := each(mostUnlisted, func(i int) error {
		switch _, err := r.Generation(ctx, i+1); {
		case errors.Is(err, store.ErrNotFound):
		case err == nil || NotVerified(err):
			found[i] = &store.Unavailable{Cause: fmt.Errorf("its listing lacks %s, %w", generationName(i+1), errUnlisted)}
		default:
			return err
		}
		return nil
	})
	return cmp.Or(err, cmp.Or(found[:]...))
}

// mostGenerations is how many numbers names have room for.
const mostGenerations = 999999

// generationAfter is the number of the next generation of which there is anything; 0 if there is none.
func (r *Reader) generationAfter(ctx context.Context, number int) (int, error) {
	after := ""
	if number > 0 {
		after = GenerationPrefix(number) + "z" // behind everything in it
	}
	for object, err := range r.store.List(ctx, generationsPrefix, after) {
		if err != nil {
			return 0, err
		}
		var next int
		directory, _, _ := strings.Cut(strings.TrimPrefix(object.Name, generationsPrefix), "/")
		if _, err := fmt.Sscanf(directory, "%d", &next); err == nil && next > number && next <= mostGenerations && strings.HasPrefix(object.Name, GenerationPrefix(next)) {
			return next, nil
		}
	}
	return 0, nil
}

// Remains is how names begin of something of a generation that the store has, named or not; empty if it has nothing.
func (r *Reader) Remains(ctx context.Context) (string, error) {
	number, err := r.generationAfter(ctx, 0)
	if err != nil || number == 0 {
		return "", err
	}
	return GenerationPrefix(number), nil
}

// Generation reads the statement of a generation; store.ErrNotFound reports that there is none.
func (r *Reader) Generation(ctx context.Context, number int) (Generation, error) {
	var generation Generation
	name := generationName(number)
	line, err := r.statement(ctx, name, generationKind, &generation)
	generation.signed = format.Signed(line)
	if err == nil && (generation.Number != number || generation.Cluster == "" || generation.contradictsItself()) {
		err = r.damaged(name)
	}
	return generation, err
}

// contradictsItself tells whether no restore begins such a generation.
func (g Generation) contradictsItself() bool {
	return g.Parent < 0 || g.Parent >= g.Number || g.ParentRevision < 0 || g.Parent == 0 && g.ParentRevision > 0
}

// mostRestored is how many ids of restores a generation tells.
const mostRestored = 100

// Restores are the ids of the restores that generations came out of, the last ones, the newest last.
func Restores(generations []Generation) []string {
	ids := distinct(generations, func(g Generation) []string { return append(slices.Clone(g.Restored), g.Restore) })
	return ids[max(0, len(ids)-mostRestored):]
}

// Adoptions are the owners that have taken the store by --adopt.
func Adoptions(generations []Generation) []string {
	return distinct(generations, func(g Generation) []string { return g.Adopted })
}

func distinct(generations []Generation, of func(Generation) []string) (all []string) {
	for _, g := range generations {
		for _, one := range of(g) {
			if one != "" && !slices.Contains(all, one) {
				all = append(all, one)
			}
		}
	}
	return all
}

const reservationKind = "reservation"

// Margin is how many revisions a reservation is ahead of what was handed out when it was made, and Renewal how many it must be
// ahead still: then another one is made.
const (
	Margin  = 1_000_000_000
	Renewal = Margin / 4
)

// Reservation says that no revision above this one was ever handed out to a client.
type Reservation struct {
	format.Heading
	Cluster    string    `json:"cluster"`
	Generation int       `json:"generation"`
	Revision   int64     `json:"revision"`
	Created    time.Time `json:"created"`
}

// Above is the revision that a restored cluster goes on above, so that none is handed out twice: the reservation, if members have
// kept it ahead of what they handed out, and Margin above the highest known revision otherwise. reserved is 0 if there is none.
func Above(reserved, known int64) int64 {
	if reserved-known >= Renewal/2 { // a member may have been about to renew it
		return reserved
	}
	return max(reserved, known+Margin)
}

// Reserve writes a reservation. Heading is filled in. store.ErrExists says that there is one of that revision.
func (w *Writer) Reserve(ctx context.Context, reservation Reservation) error {
	reservation.Heading = heading(reservationKind)
	reservation.Created = reservation.Created.UTC().Truncate(time.Second)
	return w.state(ctx, reservationName(reservation.Revision), reservation)
}

// Reserved returns the reservation of the highest revision, of those that can be verified: anybody may choose a name. store.ErrNotFound reports
// that there is none.
func (r *Reader) Reserved(ctx context.Context) (Reservation, error) {
	all, err := r.reservations(ctx)
	if err != nil {
		return Reservation{}, err
	}
	for _, revision := range slices.Backward(all) {
		var reservation Reservation
		_, err := r.statement(ctx, reservationName(revision), reservationKind, &reservation)
		if err == nil && reservation.Revision == revision {
			return reservation, nil
		}
		if err != nil && !NotVerified(err) {
			return Reservation{}, err
		}
	}
	return Reservation{}, r.named(reservationPrefix, store.ErrNotFound)
}

// beyondReason is a revision that no cluster reaches, at a million a second for ten thousand years. A reservation of more leaves nothing to
// hand out.
const beyondReason = 1 << 58

// reservations returns the revisions that names of reservations have, in order.
func (r *Reader) reservations(ctx context.Context) (all []int64, err error) {
	for object, err := range r.store.List(ctx, reservationPrefix, "") {
		if err != nil {
			return nil, err
		}
		var revision int64
		if _, err := fmt.Sscanf(object.Name, reservationPrefix+"%d", &revision); err == nil && reservationName(revision) == object.Name && revision < beyondReason {
			all = append(all, revision)
		}
	}
	return all, nil
}

func reservationName(revision int64) string {
	return fmt.Sprintf("%s%019d", reservationPrefix, revision)
}

// Reported is the last revision that names tell of, in the newest generation of which there is anything; where that has nothing yet, what
// it was begun with. It is for whoever does not believe what lies below the names. They prove nothing, as anybody who may write can
// make them, and that of the last segment does not tell its end.
func (r *Reader) Reported(ctx context.Context) (last int64, err error) {
	newest := 0
	for number := 0; ; newest = number {
		if number, err = r.generationAfter(ctx, number); err != nil {
			return 0, err
		}
		if number == 0 {
			break
		}
	}
	last, err = r.reportedBy(ctx, newest)
	if err != nil || last > 0 || newest < 2 {
		return last, err
	}
	reserved, err := r.reservations(ctx) // by the newest restore, which reserved what comes above what it went on at
	if err != nil || len(reserved) == 0 {
		return 0, err
	}
	return max(0, slices.Max(reserved)-Margin), nil
}

// reportedBy is the last revision that names of a generation tell of; 0 if none does.
func (r *Reader) reportedBy(ctx context.Context, generation int) (int64, error) {
	fulls, _, err := r.listFulls(ctx, generation)
	if err != nil {
		return 0, err
	}
	x, err := r.indexed(ctx, generation)
	if err != nil {
		return 0, err
	}
	return Generational{Fulls: fulls, Objects: x.all()}.reported(), nil
}
