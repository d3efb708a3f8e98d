// The smoke test of the lab's devices, without any of this project's code: one process connects to itself with the
// connection manager, passes messages to and fro in event mode, writes into the other side's memory and checks what arrived.
//
//   smoke messages    send and receive, content checked on both sides
//   smoke write       RDMA Write, content checked by its target
//   smoke immediate   RDMA Write with immediate; exit status 77 where the device refuses it
//
// On siw the server's kernel overlooks the connection's first message if it comes within microseconds of the accept, until
// anything else arrives (docs/lab.md). So the client that gets no answer writes a byte, which takes no receive, and says so.
//
// Environment: LAB_DEVICE (rxe0), LAB_KIND (rxe), LAB_ADDRESS (10.9.0.1). Any failure is one line and exit status 1.

#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGE = 4096, ROUNDS = 100, REGION = 1 << 20, DEPTH = 16, CANNOT = 77, PATIENCE_MS = 1000, NUDGES = 5 };

static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    puts("");
    exit(1);
}

static const char *from_environment(const char *name) {
    const char *value = getenv(name);
    if (!value)
        fail("%s is not set: this program runs in the lab's guest", name);
    return value;
}

// What the server tells the client about the memory that it may write, in the private data of its accept.
struct target {
    uint64_t address;
    uint32_t rkey;
} __attribute__((packed));

// One end of the connection. `in`, `out` and `region` are parts of one registered allocation.
struct side {
    const char *name;
    struct rdma_event_channel *events;
    struct rdma_cm_id *id;
    struct ibv_pd *pd;
    struct ibv_comp_channel *completions;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    unsigned char *in, *out, *region;
    struct target peer;
    bool answered;
    int nudges, unfinished_nudges;
};

static void create_queues(struct side *side) {
    struct ibv_context *verbs = side->id->verbs;
    const char *device = ibv_get_device_name(verbs->device), *wanted = from_environment("LAB_DEVICE");
    if (strcmp(device, wanted))
        fail("%s: the connection manager chose %s for this address, not %s", side->name, device, wanted);
    side->pd = ibv_alloc_pd(verbs);
    side->completions = ibv_create_comp_channel(verbs);
    if (!side->pd || !side->completions)
        fail("%s: no protection domain or completion channel: %m", side->name);
    side->cq = ibv_create_cq(verbs, 2 * DEPTH, NULL, side->completions, 0);
    if (!side->cq || ibv_req_notify_cq(side->cq, 0))
        fail("%s: no completion queue: %m", side->name);
    size_t length = 2 * MESSAGE + REGION;
    side->in = calloc(1, length);
    side->out = side->in + MESSAGE;
    side->region = side->out + MESSAGE;
    side->mr = ibv_reg_mr(side->pd, side->in, length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    if (!side->mr)
        fail("%s: cannot register %zu bytes: %m", side->name, length);
    struct ibv_qp_init_attr attributes = {
        .send_cq = side->cq,
        .recv_cq = side->cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1},
    };
    if (rdma_create_qp(side->id, side->pd, &attributes))
        fail("%s: no queue pair: %m", side->name);
}

static void post_receive(struct side *side) {
    struct ibv_sge part = {.addr = (uintptr_t)side->in, .length = MESSAGE, .lkey = side->mr->lkey};
    struct ibv_recv_wr request = {.sg_list = &part, .num_sge = 1}, *bad = NULL;
    int error = ibv_post_recv(side->id->qp, &request, &bad);
    if (error || bad)
        fail("%s: a receive was not posted: %d", side->name, error);
}

// Posts `opcode` of `length` bytes at `from`. Returns false if the device refused it.
static bool post(struct side *side, enum ibv_wr_opcode opcode, unsigned char *from, uint32_t length) {
    struct ibv_sge part = {.addr = (uintptr_t)from, .length = length, .lkey = side->mr->lkey};
    struct ibv_send_wr request = {
        .sg_list = &part, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED, .imm_data = htonl(42)};
    if (opcode != IBV_WR_SEND) {
        request.wr.rdma.remote_addr = side->peer.address;
        request.wr.rdma.rkey = side->peer.rkey;
    }
    struct ibv_send_wr *bad = NULL;
    // A device may say so in either: siw returns 0 and sets `bad` when it refuses one of several.
    return ibv_post_send(side->id->qp, &request, &bad) == 0 && !bad;
}

// Waits for the completion channel; while the server has not answered yet, writes a byte whenever it takes too long.
static void wait_for_event(struct side *side) {
    struct pollfd ready = {.fd = side->completions->fd, .events = POLLIN};
    // Only the client knows a target, and only on siw is silence a matter of the first message.
    bool may_nudge = side->peer.rkey && !strcmp(from_environment("LAB_KIND"), "siw");
    while (may_nudge && !side->answered && side->nudges < NUDGES && poll(&ready, 1, PATIENCE_MS) == 0) {
        side->nudges++;
        side->unfinished_nudges++;
        printf("%s: no answer within %d ms, so a byte is written\n", side->name, PATIENCE_MS);
        if (!post(side, IBV_WR_RDMA_WRITE, side->region, 1))
            fail("%s: the byte was not posted", side->name);
    }
    struct ibv_cq *cq;
    void *context;
    if (ibv_get_cq_event(side->completions, &cq, &context))
        fail("%s: no completion event: %m", side->name);
    ibv_ack_cq_events(cq, 1);
}

// Waits in the completion channel for the next completion of any kind.
static struct ibv_wc next_completion(struct side *side) {
    struct ibv_wc done;
    for (;;) {
        int count = ibv_poll_cq(side->cq, 1, &done);
        if (count < 0)
            fail("%s: polling failed: %d", side->name, count);
        if (count == 1)
            break;
        wait_for_event(side);
        // Armed before the queue is polled again, so that nothing which arrives in between is missed.
        if (ibv_req_notify_cq(side->cq, 0))
            fail("%s: cannot arm the completion queue: %m", side->name);
    }
    if (done.status != IBV_WC_SUCCESS)
        fail("%s: a work request failed: %s", side->name, ibv_wc_status_str(done.status));
    return done;
}

// Waits until `sends` sends and `receives` receives have completed, in whatever order they do.
static struct ibv_wc await(struct side *side, int sends, int receives) {
    struct ibv_wc done, received = {0};
    while (sends + side->unfinished_nudges > 0 || receives > 0) {
        done = next_completion(side);
        if (done.opcode & IBV_WC_RECV) {
            receives--;
            received = done;
            side->answered = true;
        } else if (sends > 0) {
            sends--;
        } else {
            side->unfinished_nudges--;
        }
    }
    return received;
}

static void fill(unsigned char *bytes, size_t length, unsigned seed) {
    for (size_t i = 0; i < length; i++)
        bytes[i] = (unsigned char)(seed * 31 + i * 7 + (i >> 8));
}

static void check(const struct side *side, const unsigned char *bytes, size_t length, unsigned seed) {
    for (size_t i = 0; i < length; i++)
        if (bytes[i] != (unsigned char)(seed * 31 + i * 7 + (i >> 8)))
            fail("%s: byte %zu of %zu with seed %u is wrong", side->name, i, length, seed);
}

static void send_message(struct side *side, unsigned seed) {
    fill(side->out, MESSAGE, seed);
    if (!post(side, IBV_WR_SEND, side->out, MESSAGE))
        fail("%s: a send was not posted", side->name);
}

static void check_message(struct side *side, struct ibv_wc received, unsigned seed) {
    if (received.byte_len != MESSAGE)
        fail("%s: %u bytes arrived instead of %d", side->name, received.byte_len, MESSAGE);
    check(side, side->in, MESSAGE, seed);
}

// The other side's half of each test. The client has the first word: iWARP allows nothing else. A reply's completion is
// awaited with the next request, which may come before it; that of the last is not: the client hangs up on the reply.
static void serve(struct side *side, const char *test) {
    if (!strcmp(test, "messages")) {
        for (unsigned round = 0; round < ROUNDS; round++) {
            check_message(side, await(side, round > 0, 1), round);
            post_receive(side);
            send_message(side, round + 1000);
        }
        return;
    }
    struct ibv_wc received = await(side, 0, 1);
    if (!strcmp(test, "immediate") && (received.opcode != IBV_WC_RECV_RDMA_WITH_IMM || ntohl(received.imm_data) != 42))
        fail("%s: no immediate came with the write", side->name);
    check(side, side->region, REGION, 7);
    post_receive(side);
    send_message(side, 1);
}

static void run(struct side *side, const char *test) {
    if (!strcmp(test, "messages")) {
        for (unsigned round = 0; round < ROUNDS; round++) {
            send_message(side, round);
            check_message(side, await(side, 1, 1), round + 1000);
            post_receive(side);
        }
        return;
    }
    fill(side->region, REGION, 7);
    if (!strcmp(test, "immediate")) {
        if (!post(side, IBV_WR_RDMA_WRITE_WITH_IMM, side->region, REGION)) {
            printf("%s refuses an RDMA Write with immediate\n", from_environment("LAB_KIND"));
            exit(CANNOT);
        }
        await(side, 1, 1);
        return;
    }
    if (!post(side, IBV_WR_RDMA_WRITE, side->region, REGION))
        fail("%s: the write was not posted", side->name);
    // A send behind the write on the same queue pair arrives after it.
    send_message(side, 0);
    await(side, 2, 1);
}

// The next event of the connection manager, which must be `wanted`. Returns what the other side said with it.
static struct target expect(struct side *side, enum rdma_cm_event_type wanted, struct rdma_cm_id **id) {
    struct rdma_cm_event *event;
    struct target said = {0};
    if (rdma_get_cm_event(side->events, &event))
        fail("%s: no event: %m", side->name);
    if (event->event != wanted)
        fail("%s: %s came instead of %s, status %d", side->name, rdma_event_str(event->event), rdma_event_str(wanted),
            event->status);
    if (id)
        *id = event->id;
    if (event->param.conn.private_data_len >= sizeof said)
        memcpy(&said, event->param.conn.private_data, sizeof said);
    rdma_ack_cm_event(event);
    return said;
}

struct service {
    struct side side;
    struct rdma_cm_id *listener;
    const char *test;
};

static void *server(void *argument) {
    struct service *service = argument;
    struct side *side = &service->side;
    expect(side, RDMA_CM_EVENT_CONNECT_REQUEST, &side->id);
    create_queues(side);
    post_receive(side);
    struct target target = {.address = (uintptr_t)side->region, .rkey = side->mr->rkey};
    struct rdma_conn_param parameters = {.private_data = &target, .private_data_len = sizeof target, .rnr_retry_count = 7};
    if (rdma_accept(side->id, &parameters))
        fail("server: cannot accept: %m");
    expect(side, RDMA_CM_EVENT_ESTABLISHED, NULL);
    serve(side, service->test);
    expect(side, RDMA_CM_EVENT_DISCONNECTED, NULL);
    return NULL;
}

static struct sockaddr_in lab_address(void) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    if (inet_pton(AF_INET, from_environment("LAB_ADDRESS"), &address.sin_addr) != 1)
        fail("LAB_ADDRESS is no address");
    return address;
}

static void open_side(struct side *side, const char *name, struct rdma_cm_id **id) {
    side->name = name;
    side->events = rdma_create_event_channel();
    if (!side->events || rdma_create_id(side->events, id, NULL, RDMA_PS_TCP))
        fail("%s: no connection manager: %m", name);
}

static void connect_to(struct side *side, struct sockaddr_in address) {
    if (rdma_resolve_addr(side->id, NULL, (struct sockaddr *)&address, 2000))
        fail("client: cannot resolve the address: %m");
    expect(side, RDMA_CM_EVENT_ADDR_RESOLVED, NULL);
    if (rdma_resolve_route(side->id, 2000))
        fail("client: cannot resolve the route: %m");
    expect(side, RDMA_CM_EVENT_ROUTE_RESOLVED, NULL);
    create_queues(side);
    post_receive(side);
    struct rdma_conn_param parameters = {.retry_count = 7, .rnr_retry_count = 7};
    if (rdma_connect(side->id, &parameters))
        fail("client: cannot connect: %m");
    side->peer = expect(side, RDMA_CM_EVENT_ESTABLISHED, NULL);
    if (!side->peer.rkey)
        fail("client: the accept came without the server's private data");
}

int main(int count, char **words) {
    if (count != 2 || (strcmp(words[1], "messages") && strcmp(words[1], "write") && strcmp(words[1], "immediate")))
        fail("say messages, write or immediate");
    setvbuf(stdout, NULL, _IOLBF, 0);
    struct service service = {.test = words[1]};
    struct side client = {0};
    struct sockaddr_in address = lab_address();
    open_side(&service.side, "server", &service.listener);
    if (rdma_bind_addr(service.listener, (struct sockaddr *)&address) || rdma_listen(service.listener, 1))
        fail("server: cannot listen: %m");
    address.sin_port = rdma_get_src_port(service.listener);
    pthread_t thread;
    if (pthread_create(&thread, NULL, server, &service))
        fail("no thread");
    open_side(&client, "client", &client.id);
    connect_to(&client, address);
    run(&client, service.test);
    if (rdma_disconnect(client.id))
        fail("client: cannot disconnect: %m");
    pthread_join(thread, NULL);
    printf("%s: ok on %s\n", service.test, from_environment("LAB_DEVICE"));
    return 0;
}
