"""`/simulate/*`: the load simulator's switch. Absent from a server that has none."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Request

from inference_server.api.context import Context
from inference_server.api.json_route import JsonRoute
from inference_server.api.schemas.simulate import StartBody
from inference_server.simulator.simulator import LoadSimulator, SimulationRunningError

router = APIRouter(prefix="/simulate", tags=["simulator"], route_class=JsonRoute)


async def _simulator(context: Context) -> LoadSimulator:
    if context.simulator is None:
        raise HTTPException(404, "this server has no simulator; ENABLE_SIMULATOR=true gives it one")
    return context.simulator


Simulator = Annotated[LoadSimulator, Depends(_simulator)]


@router.post("/start")
async def start(body: StartBody, request: Request, context: Context, simulator: Simulator) -> dict[str, Any]:
    """Let virtual users talk to this server through its own /generate. 409 while a simulation runs."""
    context.engine.check_admission()
    authorization = request.headers.get("authorization")
    try:
        simulator.start(body.options(), own_address(request), {"Authorization": authorization} if authorization else {})
    except SimulationRunningError:
        raise HTTPException(409, "a simulation is running; stop it first") from None
    return simulator.status()


@router.post("/stop")
async def stop(simulator: Simulator) -> dict[str, Any]:
    """End the simulation and cut off its requests. Nothing happens without one."""
    await simulator.stop()
    return simulator.status()


@router.get("/status")
async def status(simulator: Simulator) -> dict[str, Any]:
    """What the simulation that runs, or the latest one, has met with."""
    return simulator.status()


def own_address(request: Request) -> str:
    """The socket on which `request` came in. Not its Host header, which the client makes up: Authorization would go wherever it says.

    Raises HTTPException where that is no address: a Unix socket, or a replica of a fleet.
    """
    if request.scope["server"] is None:
        raise HTTPException(404, "this server has no address of its own that a simulation could call")
    host, port = request.scope["server"]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
